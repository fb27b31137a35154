//! Errors of reading an ELF file.

use std::io;

/// Of what a limit is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Whole {
    /// Of one table of a file.
    Table,
    /// Of all tables of one file that are held in memory.
    Tables,
    /// Of all that is read of one file.
    File,
    /// Of all that is read of the files of one process.
    Process,
}

impl std::fmt::Display for Whole {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Whole::Table => "such a table",
            Whole::Tables => "the tables of one file",
            Whole::File => "one file",
            Whole::Process => "all files of one process",
        })
    }
}

/// Why a file cannot be read as ELF.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ElfError {
    /// It is not an ELF file.
    #[error("it is no ELF file")]
    NotElf,
    /// It is an ELF file of a class or byte order that we do not read. The text names that.
    #[error("it is an ELF file of another kind ({0})")]
    Kind(&'static str),
    /// A table has a form that no real one has. The text says which.
    #[error("it is damaged: {0}")]
    Damaged(&'static str),
    /// A table lies outside the file. The text names the table.
    #[error("it is damaged: {0} lies outside the file")]
    Outside(&'static str),
    /// A table is larger than any real one, or there is too much in the file or in the files of the process.
    #[error(
        "{table} has {bytes} bytes, and of {whole} at most {most} are read; a smaller file is read, for example a \
         stripped one"
    )]
    TooLarge {
        /// Name of the table.
        table: &'static str,
        /// Size in bytes that it has by the file's headers.
        bytes: u64,
        /// Of what the limit is.
        whole: Whole,
        /// The limit in bytes.
        most: u64,
    },
    /// There are more things of a kind than any real file, or any real process, has.
    #[error(
        "there are more than {most} {what} in {whole}, so it is no library of a vendor and is not looked at further"
    )]
    TooMany {
        /// The things.
        what: &'static str,
        /// Of what the limit is.
        whole: Whole,
        /// The limit.
        most: u64,
    },
    /// Reading the file failed.
    #[error("it cannot be read")]
    Read(#[from] io::Error),
}
