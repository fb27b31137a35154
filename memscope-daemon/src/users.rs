//! Users of this machine by their names.

/// The id of a user, by number or by name; `None`: there is none with this name.
pub fn uid(name: &str) -> Option<u32> {
    let number = name.parse().ok();
    number.or_else(|| uzers::get_user_by_name(name).map(|user| user.uid()))
}
