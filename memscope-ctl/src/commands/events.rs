//! `events`.

use crate::args;
use crate::client::Client;
use crate::failure::{Exit, Failure};
use crate::output;
use memscope_proto::v1;
use std::time::Duration;

pub(super) async fn events(
    client: &Client,
    events: &args::Events,
    patience: Option<Duration>,
) -> Result<Exit, Failure> {
    let question = v1::EventsRequest {
        pid: events.pid,
        kinds: events.kind.clone(),
    };
    let mut stream = client
        .ask(question, async |mut rpc, request| rpc.events(request).await)
        .await?;
    let mut left = events.count.unwrap_or(u64::MAX);
    while left > 0 {
        // Ends when the daemon ends.
        let Some(event) = client.next_within(&mut stream, patience).await? else {
            break;
        };
        output::json_line(&event)?;
        left -= 1;
    }
    Ok(Exit::Done)
}
