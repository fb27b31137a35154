//! What the holder of a certificate may do.
//!
//! Owns: the roles, the words for them, and how several add up. Refuses: to know where the words come from
//! (`door::certificate`), and which request needs what (`rights`).

use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

/// What a request needs. Each right includes those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Right {
    /// Questions, about what the caller may see.
    See,
    /// What changes something, and files to take away.
    Control,
    /// What only root may do otherwise.
    Admin,
}

impl Right {
    /// The role that gives this right, as it stands in a certificate.
    #[must_use]
    pub fn role(self) -> &'static str {
        match self {
            Right::See => "see",
            Right::Control => "control",
            Right::Admin => "admin",
        }
    }
}

/// The roles of one certificate, added up.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Roles {
    /// Everything that root may do.
    pub admin: bool,
    /// To see all processes, and to change what is traced.
    pub control: bool,
    /// To see all processes.
    pub see: bool,
    /// To see the processes of these Kubernetes namespaces.
    pub namespaces: BTreeSet<String>,
}

/// A word that names no role.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{word:?} is no role — write see=NAMESPACE, see, control or admin (or none, where no role is meant)"
)]
pub struct NoSuchRole {
    /// The word.
    pub word: String,
}

impl Roles {
    /// Adds a role by its word.
    ///
    /// # Errors
    /// If there is no such role.
    pub fn add(&mut self, word: &str) -> Result<(), NoSuchRole> {
        match word {
            "admin" => self.admin = true,
            "control" => self.control = true,
            "see" => self.see = true,
            _ => match word.strip_prefix("see=") {
                Some(namespace) if !namespace.is_empty() => {
                    self.namespaces.insert(namespace.to_owned());
                }
                _ => {
                    return Err(NoSuchRole {
                        word: word.to_owned(),
                    });
                }
            },
        }
        Ok(())
    }

    /// Whether there is no role at all.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Roles::default()
    }

    /// Whether requests that need `right` may be made.
    #[must_use]
    pub fn give(&self, right: Right) -> bool {
        match right {
            Right::See => !self.is_empty(),
            Right::Control => self.control || self.admin,
            Right::Admin => self.admin,
        }
    }

    /// Whether all processes may be seen.
    #[must_use]
    pub fn see_all(&self) -> bool {
        self.see || self.control || self.admin
    }

    /// Whether a process of this Kubernetes namespace may be seen. `None`: it has none, or it is not known.
    #[must_use]
    pub fn see_namespace(&self, namespace: Option<&str>) -> bool {
        self.see_all() || namespace.is_some_and(|namespace| self.namespaces.contains(namespace))
    }
}

/// The words of the roles, separated by commas, or `none`.
impl fmt::Display for Roles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let whole = [
            (self.admin, "admin"),
            (self.control, "control"),
            (self.see, "see"),
        ];
        let whole = whole.into_iter().filter(|(has, _)| *has);
        let mut words: Vec<String> = whole.map(|(_, word)| word.to_owned()).collect();
        words.extend(self.namespaces.iter().map(|one| format!("see={one}")));
        match words.is_empty() {
            true => f.write_str("none"),
            false => f.write_str(&words.join(",")),
        }
    }
}

/// One word, as `--tls-default-role` takes it. `none` is no role at all.
impl FromStr for Roles {
    type Err = NoSuchRole;

    fn from_str(text: &str) -> Result<Roles, NoSuchRole> {
        let mut roles = Roles::default();
        if text != "none" {
            roles.add(text)?;
        }
        Ok(roles)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn roles_add_up_and_each_includes_what_is_below_it() {
        let mut roles = Roles::default();
        assert!(!roles.give(Right::See));
        roles.add("see=ml").unwrap();
        roles.add("see=web").unwrap();
        assert!(roles.give(Right::See) && !roles.give(Right::Control) && !roles.see_all());
        assert!(roles.see_namespace(Some("ml")) && roles.see_namespace(Some("web")));
        assert!(!roles.see_namespace(Some("m")) && !roles.see_namespace(None));
        assert_eq!(roles.to_string(), "see=ml,see=web");
        roles.add("control").unwrap();
        assert!(roles.give(Right::Control) && !roles.give(Right::Admin));
        assert!(roles.see_namespace(None), "control sees all processes");
        let admin: Roles = "admin".parse().unwrap();
        for right in [Right::See, Right::Control, Right::Admin] {
            assert!(admin.give(right));
        }
    }

    #[test]
    fn words_that_are_no_roles_give_nothing() {
        for word in ["", "see=", "SEE", "root", "see ", "none,see"] {
            assert!(word.parse::<Roles>().is_err(), "{word:?}");
        }
        assert!("none".parse::<Roles>().unwrap().is_empty());
    }
}
