//! What a question is, and the macro that makes the list of them.
//!
//! Owns: the ways to ask any question. Refuses: to answer; each question has a file of its own.

use super::affects::Answer;
use crate::Ledger;
use crate::clock::Clock;
use crate::event::ProcessHandle;
use crate::report::AsOf;
use crate::state::process::Process;
use memscope_proto::v1;

/// What must be brought up to date before a question is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Needs {
    /// All events up to now.
    Events,
    /// Also a reading of the process, if nothing but readings shows its memory (level `read`).
    Reading,
    /// Also the allocator's totals, and the free memory of the devices.
    Totals,
}

/// A question that cannot be answered whatever the state, with the reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Senseless {
    /// What is wrong with the question, as a sentence for users.
    pub what: String,
    /// What to ask instead, as a sentence for users.
    pub hint: String,
}

/// A message that asks a question, and how it is answered.
pub trait Question: Send + Sync + 'static {
    /// The message that answers it.
    type Reply;

    /// Kind of the answer, for clients that accept only exact ones; `None` if it has no numbers that could be inexact.
    const KIND: Option<Answer>;

    /// Process that the question is about; `None` if it is about all that the caller may see.
    fn pid(&self) -> Option<u32>;

    /// Checks whether the question can be answered at all.
    ///
    /// # Errors
    /// Says what is wrong with the question.
    fn check(&self) -> Result<(), Senseless> {
        Ok(())
    }

    /// Builds the answer about these processes; `None` where a process that it needs is not known.
    fn answer(&self, ledger: &Ledger, of: &[ProcessHandle], as_of: AsOf) -> Option<Self::Reply>;

    /// Coverage notes of an answer: what limits its numbers.
    fn coverage(_reply: &Self::Reply) -> &[v1::CoverageNote] {
        &[]
    }

    /// Why an answer knows nothing of what was asked for; `None` where it knows something.
    fn unknown(_reply: &Self::Reply) -> Option<&str> {
        None
    }
}

/// The process that a question is about, with what its answer needs beside the state.
pub struct One<'a> {
    pub(crate) process: &'a Process,
    pub(crate) as_of: AsOf,
    pub(crate) clock: &'a Clock,
}

/// A question about one process.
pub trait OfOne: Send + Sync + 'static {
    type Reply: AboutOne;
    const KIND: Option<Answer>;

    fn pid(&self) -> u32;

    fn check(&self) -> Result<(), Senseless> {
        Ok(())
    }

    fn answer(&self, one: &One<'_>) -> Self::Reply;

    fn unknown(_reply: &Self::Reply) -> Option<&str> {
        None
    }
}

impl<Q: OfOne> Question for Q {
    type Reply = Q::Reply;
    const KIND: Option<Answer> = Q::KIND;

    fn pid(&self) -> Option<u32> {
        Some(OfOne::pid(self))
    }

    fn check(&self) -> Result<(), Senseless> {
        OfOne::check(self)
    }

    fn answer(&self, ledger: &Ledger, of: &[ProcessHandle], as_of: AsOf) -> Option<Q::Reply> {
        let [process] = of else { return None };
        let one = One {
            process: ledger.process(*process)?,
            as_of,
            clock: ledger.clock(),
        };
        Some(OfOne::answer(self, &one))
    }

    fn coverage(reply: &Q::Reply) -> &[v1::CoverageNote] {
        reply.coverage()
    }

    fn unknown(reply: &Q::Reply) -> Option<&str> {
        Q::unknown(reply)
    }
}

/// The answer to a question about one process.
pub trait AboutOne {
    fn coverage(&self) -> &[v1::CoverageNote];
}

/// Builds an answer about one process: the fields that all such answers have, and the given ones.
macro_rules! answer {
    ($reply:ident of $one:expr, { $($field:tt)* }) => {{
        let one: &$crate::questions::question::One<'_> = $one;
        let process = one.process.summary();
        memscope_proto::v1::$reply {
            pid: process.facts.pid,
            as_of: one.as_of.unix_ns,
            as_of_boot_ns: one.as_of.boot_ns,
            as_of_event: Some(one.as_of.event.into()),
            lost_records: process.lost_records,
            process: Some(process.into()),
            coverage: $crate::questions::coverage::notes(one.process),
            $($field)*
        }
    }};
}
pub(crate) use answer;

/// Makes [`Asked`] and [`Answered`] from a list: the name of a question, its message, the message that answers it, and
/// what it needs.
macro_rules! questions {
    (
        about one process {
            $($one:ident: $asked_of_one:ident => $reply_of_one:ident, $needs_of_one:ident;)*
        }
        about all that the caller may see {
            $($all:ident: $asked_of_all:ident => $reply_of_all:ident, $needs_of_all:ident;)*
        }
    ) => {
        questions! {
            $($one: $asked_of_one => $reply_of_one, $needs_of_one;)*
            $($all: $asked_of_all => $reply_of_all, $needs_of_all;)*
        }

        $(impl AboutOne for v1::$reply_of_one {
            fn coverage(&self) -> &[v1::CoverageNote] {
                &self.coverage
            }
        })*
    };
    ($($name:ident: $asked:ident => $reply:ident, $needs:ident;)*) => {
        /// Any question.
        #[derive(Clone, Debug, PartialEq)]
        pub enum Asked {
            $(#[allow(missing_docs)] $name(v1::$asked),)*
        }

        /// The answer to any question.
        #[derive(Clone, Debug, PartialEq)]
        pub enum Answered {
            $(#[allow(missing_docs)] $name(v1::$reply),)*
        }

        impl Asked {
            /// Process that the question is about; `None` if it is about all that the caller may see.
            #[must_use]
            pub fn pid(&self) -> Option<u32> {
                match self {
                    $(Asked::$name(question) => Question::pid(question),)*
                }
            }

            /// What must be brought up to date before the question is answered.
            #[must_use]
            pub fn needs(&self) -> Needs {
                match self {
                    $(Asked::$name(_) => Needs::$needs,)*
                }
            }

            /// Builds the answer about these processes; `None` where a process that it needs is not known.
            #[must_use]
            pub fn answer(&self, ledger: &Ledger, of: &[ProcessHandle], as_of: AsOf) -> Option<Answered> {
                match self {
                    $(Asked::$name(question) => Question::answer(question, ledger, of, as_of).map(Answered::$name),)*
                }
            }
        }

        $(
            impl From<v1::$asked> for Asked {
                fn from(question: v1::$asked) -> Asked {
                    Asked::$name(question)
                }
            }

            impl TryFrom<Answered> for v1::$reply {
                type Error = Answered;

                fn try_from(answered: Answered) -> Result<v1::$reply, Answered> {
                    match answered {
                        Answered::$name(reply) => Ok(reply),
                        other => Err(other),
                    }
                }
            }
        )*
    };
}
pub(crate) use questions;
