//! Answers as JSON, by the path of their method: the document that `memscope-ctl --json` has of them.

use crate::v1;

include!("generated/answers.rs");

/// Why an answer cannot be written as JSON.
#[derive(Debug, thiserror::Error)]
pub enum AnswerError {
    /// It is no message of its method.
    #[error("it is no message of this method")]
    Message(#[from] prost::DecodeError),
    /// It cannot be written.
    #[error("it cannot be written as JSON")]
    Json(#[from] serde_json::Error),
}

/// The message of an answer as JSON; `None`: no service has a method with this path.
#[must_use]
pub fn answer_json(path: &str, message: &[u8]) -> Option<Result<Vec<u8>, AnswerError>> {
    by_path(path, message)
}

fn json_of<M>(message: &[u8]) -> Result<Vec<u8>, AnswerError>
where
    M: prost::Message + Default + serde::Serialize,
{
    Ok(serde_json::to_vec(&M::decode(message)?)?)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use prost::Message as _;

    #[test]
    fn an_answer_is_what_its_message_is() {
        let stats = v1::StatsResponse {
            pid: 7,
            ..v1::StatsResponse::default()
        };
        let json = answer_json("/memscope.v1.Memscope/Stats", &stats.encode_to_vec());
        let json = json.unwrap().unwrap();
        assert_eq!(json, serde_json::to_vec(&stats).unwrap());
        assert!(answer_json("/memscope.v1.Memscope/stats", &[]).is_none());
        let broken = answer_json("/memscope.v1.Triggers/ListKept", &[0xff]);
        assert!(matches!(broken, Some(Err(AnswerError::Message(_)))));
    }
}
