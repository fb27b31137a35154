//! Questions in JSON, and their answers as `--json` prints them.
//!
//! Owns: which questions the page may ask, from JSON to messages and back. Nothing that changes something is among them.

use crate::client::Client;
use crate::commands::stacks::command;
use crate::failure::Failure;
use crate::fleet::Asking;
use crate::output::no_json;
use memscope_proto::{FILE_DESCRIPTOR_SET, v1};
use prost_reflect::prost::Message;
use prost_reflect::{DescriptorError, DescriptorPool, DynamicMessage};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::sync::OnceLock;

/// The question that no message is: what `memscope-ctl ranks` answers.
const RANKS: &str = "Ranks";

/// A question that was understood.
pub(super) enum Asked {
    /// What one daemon answers.
    Of(Question),
    /// How the ranks of a job compare, or of all jobs.
    Ranks(Option<String>),
}

/// The body of a question about ranks.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct RanksRequest {
    job: Option<String>,
}

/// The questions that are messages: the method, its request, and what is made of the answer.
macro_rules! questions {
    ($($name:ident($request:ty) $call:ident $document:path;)*) => {
        /// A question to one daemon.
        pub(super) enum Question {
            $($name($request),)*
        }

        /// Reads the request of this method; `None`: the page may not ask that.
        fn question(method: &str, json: &[u8]) -> Option<Result<Question, Failure>> {
            Some(match method {
                $(stringify!($name) => message::<$request>(stringify!($request), json).map(Question::$name),)*
                _ => return None,
            })
        }

        /// Asks a daemon.
        pub(super) async fn of_one(client: &Client, asked: &Question) -> Result<Vec<u8>, Failure> {
            match asked {
                $(Question::$name(question) => {
                    let call = async |mut rpc: crate::client::Rpc, request| rpc.$call(request).await;
                    $document(&client.ask(question.clone(), call).await?)
                })*
            }
        }

        /// Asks a node of a fleet, whose answer may not be as large.
        pub(super) async fn of_node(asking: &Asking<'_>, asked: &Question) -> Result<Vec<u8>, Failure> {
            match asked {
                $(Question::$name(question) => {
                    let call = async |mut rpc: crate::client::Rpc, request| rpc.$call(request).await;
                    $document(&asking.ask(question.clone(), call).await?)
                })*
            }
        }
    };
}

questions! {
    Stats(v1::StatsRequest) stats written;
    List(v1::ListRequest) list written;
    Devices(v1::DevicesRequest) devices written;
    Leaks(v1::LeaksRequest) leaks written;
    Fluctuation(v1::FluctuationRequest) fluctuation written;
    Steps(v1::StepsRequest) steps written;
    Marks(v1::MarksRequest) marks written;
    Stacks(v1::StacksRequest) stacks with_frames;
    Diff(v1::DiffRequest) diff written;
    Pool(v1::PoolRequest) pool written;
    Holders(v1::HoldersRequest) holders written;
    Owners(v1::OwnersRequest) owners written;
    Status(v1::StatusRequest) status written;
}

/// Reads a question; `None`: the page may not ask that.
pub(super) fn read_question(method: &str, json: &[u8]) -> Option<Result<Asked, Failure>> {
    if method != RANKS {
        return Some(question(method, json)?.map(Asked::Of));
    }
    let request = match is_empty(json) {
        true => Ok(RanksRequest::default()),
        false => serde_json::from_slice(json).map_err(|error| no_request("RanksRequest", &error)),
    };
    Some(request.map(|request| Asked::Ranks(request.job)))
}

/// The message that a request in JSON is.
pub(super) fn message<M: Message + Default>(rust: &str, json: &[u8]) -> Result<M, Failure> {
    if is_empty(json) {
        return Ok(M::default());
    }
    let name = rust.rsplit("::").next().unwrap_or(rust).trim();
    let fault = |source: Box<dyn std::error::Error + Send + Sync>| Failure::Output {
        what: "the service description cannot be read".to_owned(),
        source: std::io::Error::other(source),
    };
    let kind = described()
        .map_err(|error| fault(error.to_string().into()))?
        .get_message_by_name(&format!("memscope.v1.{name}"))
        .ok_or_else(|| fault(name.into()))?;
    let mut reader = serde_json::Deserializer::from_slice(json);
    let read = DynamicMessage::deserialize(kind, &mut reader);
    let read = read.and_then(|message| reader.end().map(|()| message));
    let message = read.map_err(|error| no_request(name, &error))?;
    message.transcode_to().map_err(|error| fault(error.into()))
}

/// The description of all messages, which is read once.
fn described() -> Result<&'static DescriptorPool, &'static DescriptorError> {
    static DESCRIBED: OnceLock<Result<DescriptorPool, DescriptorError>> = OnceLock::new();
    let read = DESCRIBED.get_or_init(|| DescriptorPool::decode(FILE_DESCRIPTOR_SET));
    read.as_ref()
}

fn is_empty(json: &[u8]) -> bool {
    json.iter().all(u8::is_ascii_whitespace)
}

fn no_request(name: &str, error: &serde_json::Error) -> Failure {
    Failure::Usage {
        what: format!("the request is no {name}: {error}"),
        hint: "write the fields as proto/memscope/v1 names them, and values of enums by their whole names"
            .to_owned(),
    }
}

/// The answer as JSON.
pub(super) fn written(answer: &impl Serialize) -> Result<Vec<u8>, Failure> {
    serde_json::to_vec(answer).map_err(no_json)
}

/// The document that this JSON is.
pub(super) fn read(json: &[u8]) -> Result<Value, Failure> {
    serde_json::from_slice(json).map_err(no_json)
}

fn with_frames(answer: &v1::StacksResponse) -> Result<Vec<u8>, Failure> {
    written(&command::document(answer)?)
}
