//! What a question is, and the list of them.
//!
//! Owns: the ways to ask any question. Refuses: to answer; each question has a file of its own.

use super::affects::Answer;
use crate::Ledger;
use crate::clock::Clock;
use crate::event::ProcessHandle;
use crate::report::AsOf;
use crate::state::process::Process;
use memscope_proto::v1;

/// What a question needs before it is answered: how new what is known of the process must be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Needs {
    /// What events told.
    Events,
    /// Also a reading of the process, if nothing but readings tells of it.
    Reading,
    /// Also the allocator's totals and what is free on the devices.
    Totals,
}

/// A question that makes no sense.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Senseless {
    /// What is wrong with it.
    pub what: String,
    /// What to ask instead.
    pub hint: String,
}

/// A question as it comes over the wire, and the message that answers it.
pub trait Question: Send + Sync + 'static {
    /// The message that answers it.
    type Reply;

    /// Which answer it is, for those who want exact ones only; `None`: it has no numbers that could be inexact.
    const KIND: Option<Answer>;

    /// The process that it is about; `None`: all that the caller may see.
    fn pid(&self) -> Option<u32>;

    /// Whether it can be answered at all.
    ///
    /// # Errors
    /// What is wrong with it.
    fn check(&self) -> Result<(), Senseless> {
        Ok(())
    }

    /// The answer about these processes; `None` where one of them is not known.
    fn answer(&self, ledger: &Ledger, of: &[ProcessHandle], as_of: AsOf) -> Option<Self::Reply>;

    /// What limits the answer.
    fn coverage(_reply: &Self::Reply) -> &[v1::CoverageNote] {
        &[]
    }

    /// Why what was asked for is not known at all, where it is not.
    fn unknown(_reply: &Self::Reply) -> Option<&str> {
        None
    }
}

/// One process, as a question sees it.
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

/// An answer about one process: what all of them begin with, and what this one has.
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

/// The list: the name of a question, its message, the message that answers it, and what it needs.
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
            /// The process that it is about; `None`: all that the caller may see.
            #[must_use]
            pub fn pid(&self) -> Option<u32> {
                match self {
                    $(Asked::$name(question) => Question::pid(question),)*
                }
            }

            /// What it needs before it is answered.
            #[must_use]
            pub fn needs(&self) -> Needs {
                match self {
                    $(Asked::$name(_) => Needs::$needs,)*
                }
            }

            /// The answer about these processes; `None` where one of them is not known.
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
