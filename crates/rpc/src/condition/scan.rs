//! Splits the text of a condition into words, numbers and signs, with their columns.

use super::error::ConditionError;
use std::fmt;

/// Largest number of characters of a condition.
const LONGEST: usize = 200;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Token<'a> {
    /// Letters and underscores.
    Word(&'a str),
    /// Digits and decimal points.
    Number(&'a str),
    /// `>` or `%`, or anything else, which the grammar refuses.
    Sign(&'a str),
}

impl fmt::Display for Token<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Token::Word(text) | Token::Number(text) | Token::Sign(text)) = self;
        write!(f, "{text:?}")
    }
}

pub(super) struct Scanner<'a> {
    tokens: Vec<(usize, Token<'a>)>,
    at: usize,
    /// Column behind the last token.
    end: usize,
}

impl<'a> Scanner<'a> {
    pub(super) fn new(text: &'a str) -> Result<Scanner<'a>, ConditionError> {
        if text.chars().count() > LONGEST {
            return Err(ConditionError {
                column: LONGEST + 1,
                what: format!("a condition has at most {LONGEST} characters"),
                hint: "shorten it".to_owned(),
            });
        }
        let mut tokens = Vec::new();
        let mut rest = text;
        let mut column = 1;
        let mut end = 1;
        while let Some(first) = rest.chars().next() {
            let length = token_length(rest, first);
            let (token, after) = rest.split_at(length);
            if !first.is_whitespace() {
                let kind = if first.is_alphabetic() || first == '_' {
                    Token::Word
                } else if first.is_ascii_digit() || first == '.' {
                    Token::Number
                } else {
                    Token::Sign
                };
                tokens.push((column, kind(token)));
                end = column + token.chars().count();
            }
            column += token.chars().count();
            rest = after;
        }
        Ok(Scanner { tokens, at: 0, end })
    }

    /// The next token and its column, without consuming it.
    pub(super) fn peek(&self) -> (usize, Option<Token<'a>>) {
        match self.tokens.get(self.at) {
            Some((column, token)) => (*column, Some(*token)),
            None => (self.end, None),
        }
    }

    /// Consumes the next token.
    pub(super) fn next(&mut self) -> (usize, Option<Token<'a>>) {
        let found = self.peek();
        self.at += 1;
        found
    }
}

fn token_length(text: &str, first: char) -> usize {
    let run = |belongs: fn(char) -> bool| text.find(|c| !belongs(c)).unwrap_or(text.len());
    if first.is_alphabetic() || first == '_' {
        run(|c| c.is_alphabetic() || c == '_')
    } else if first.is_ascii_digit() || first == '.' {
        run(|c| c.is_ascii_digit() || c == '.')
    } else if "<>=!".contains(first) {
        run(|c| "<>=!".contains(c))
    } else {
        first.len_utf8()
    }
}
