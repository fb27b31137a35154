//! What a table and a column are, and the macro that makes both from one description.

/// Version of all tables. It is in the path of each file and in each row. A new column does not change it. It changes when a column is
/// removed, or gets another meaning.
pub const VERSION: i64 = 1;

/// A moment, microseconds since 1970 in UTC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Time(pub i64);

impl Time {
    /// The moment that is so many nanoseconds after the beginning of 1970. `None`: it is zero, which stands for unknown, or too far away.
    #[must_use]
    pub fn of_unix_ns(ns: u64) -> Option<Time> {
        (ns > 0).then(|| i64::try_from(ns / 1000).ok().map(Time))?
    }
}

/// What a column holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Whole numbers of 64 bits.
    Int,
    /// Numbers of double precision.
    Double,
    /// Text in UTF-8.
    Text,
    /// True or false.
    Bool,
    /// A moment in UTC, to the microsecond.
    Time,
    /// Bytes of a file.
    Bytes,
}

impl Kind {
    /// Its word, in the page about the archive and in `columns.txt`.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Kind::Int => "int64",
            Kind::Double => "double",
            Kind::Text => "text",
            Kind::Bool => "boolean",
            Kind::Time => "timestamp",
            Kind::Bytes => "bytes",
        }
    }
}

/// One value of a row. All may be null.
#[derive(Clone, Debug, PartialEq)]
pub enum Cell {
    /// A whole number.
    Int(Option<i64>),
    /// A number of double precision.
    Double(Option<f64>),
    /// Text.
    Text(Option<String>),
    /// True or false.
    Bool(Option<bool>),
    /// A moment.
    Time(Option<Time>),
    /// Bytes of a file.
    Bytes(Option<Vec<u8>>),
}

/// A Rust type that a column can have.
pub trait Value: Sized {
    /// What such a column holds.
    const KIND: Kind;
    /// The value as it is written.
    fn cell(value: Option<Self>) -> Cell;
}

macro_rules! value {
    ($($type:ty => $kind:ident),* $(,)?) => {$(
        impl Value for $type {
            const KIND: Kind = Kind::$kind;
            fn cell(value: Option<Self>) -> Cell {
                Cell::$kind(value)
            }
        }
    )*};
}

value! {
    i64 => Int,
    f64 => Double,
    String => Text,
    bool => Bool,
    Time => Time,
    Vec<u8> => Bytes,
}

/// A column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Column {
    /// Its name. It ends in the unit where there is one.
    pub name: &'static str,
    /// What it holds.
    pub kind: Kind,
    /// What it means, in a sentence.
    pub what: &'static str,
}

/// A table.
#[derive(Clone, Copy, Debug)]
pub struct Table {
    /// Its name, which is the name of its folder.
    pub name: &'static str,
    /// What a row of it is, in sentences.
    pub about: &'static str,
    /// The columns that it has beside those that all tables have.
    pub own: &'static [Column],
}

/// Rows of one table as a Rust type, made by [`table!`](crate::table).
pub trait Record {
    /// The table.
    const TABLE: Table;
    /// The values of its own columns, in their order.
    fn cells(self) -> Vec<Cell>;
}

/// A row that is ready to be written.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// Name of its table.
    pub table: &'static str,
    /// The day that it belongs to, `YYYY-MM-DD` in UTC.
    pub date: String,
    /// The job that it belongs to, as it stands in the path.
    pub job: String,
    /// Its values: first those that all tables have, then the table's own.
    pub cells: Vec<Cell>,
}

/// Makes a Rust type and the description of its table from one list: comments are what the page about the archive says.
macro_rules! table {
    ($(#[doc = $about:literal])+ $row:ident $name:literal { $($(#[doc = $what:literal])+ $column:ident: $kind:ty),* $(,)? }) => {
        $(#[doc = $about])+
        #[derive(Clone, Debug, Default, PartialEq)]
        pub struct $row {
            $($(#[doc = $what])+ pub $column: Option<$kind>,)*
        }

        impl $crate::table::Record for $row {
            const TABLE: $crate::table::Table = $crate::table::Table {
                name: $name,
                about: concat!($($about),+),
                own: &[$($crate::table::Column {
                    name: stringify!($column),
                    kind: <$kind as $crate::table::Value>::KIND,
                    what: concat!($($what),+),
                }),*],
            };

            fn cells(self) -> Vec<$crate::table::Cell> {
                vec![$(<$kind as $crate::table::Value>::cell(self.$column)),*]
            }
        }
    };
}

pub(crate) use table;
