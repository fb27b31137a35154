//! Triggers and the snapshots that they took: what each caller may do and see, and how files are sent.

#![allow(clippy::unwrap_used)]

mod common;

use common::{ADA, BOB, Server, as_user, of_ada_and_bob};
use memscope_proto::v1;
use memscope_proto::{ERROR_CODE, split_message};
use memscope_rpc::fake::{self, FakeDaemon};
use memscope_rpc::{Access, ServeOptions};
use memscope_service::triggers_client::TriggersClient;
use tonic::transport::Channel;
use tonic::{Code, Status};

async fn client(server: &Server) -> TriggersClient<Channel> {
    TriggersClient::new(server.channel().await)
}

fn add(when: &str, pid: Option<u32>) -> v1::AddTriggerRequest {
    v1::AddTriggerRequest {
        when: when.into(),
        pid,
    }
}

fn word(status: &Status) -> &str {
    status.metadata().get(ERROR_CODE).unwrap().to_str().unwrap()
}

/// A daemon with five triggers (root's for all, root's for Ada's process, root's for Bob's process, Ada's, Bob's), and
/// with kept snapshots.
fn busy() -> FakeDaemon {
    let daemon = of_ada_and_bob();
    {
        let mut state = daemon.triggers.lock().unwrap();
        for (number, uid, process) in [
            (1, 0, None),
            (2, 0, Some((11, [ADA; 3]))),
            (3, 0, Some((12, [BOB; 3]))),
            (4, ADA, None),
            (5, BOB, None),
        ] {
            let mut trigger = fake::trigger(number, "reserved > 1GiB", uid).unwrap();
            trigger.process = process;
            state.triggers.push(trigger);
        }
        for (number, pid, uid) in [(7, 11, ADA), (8, 12, BOB), (9, 11, ADA)] {
            let content = format!("file {number}").into_bytes();
            state.kept.push((fake::kept(number, pid, uid), content));
        }
        // The process of this snapshot had root's rights for a while.
        state.kept[2].0.uids = vec![ADA, 0];
    }
    daemon
}

async fn read(client: &mut TriggersClient<Channel>, snapshot: u64) -> Result<Vec<u8>, Status> {
    let question = v1::GetKeptRequest { snapshot };
    let mut stream = client.get_kept(question).await?.into_inner();
    let mut content = Vec::new();
    while let Some(chunk) = stream.message().await? {
        if chunk.content.is_empty() {
            return Ok(content);
        }
        content.extend(chunk.content);
    }
    panic!("the file has no end");
}

#[tokio::test]
async fn a_condition_is_read_and_written_back() {
    let server = Server::start(of_ada_and_bob(), as_user(0));
    let mut client = client(&server).await;
    let added = client
        .add_trigger(add("reserved>1024MiB on device 1", Some(11)))
        .await
        .unwrap()
        .into_inner()
        .trigger
        .unwrap();
    assert_eq!(added.when, "reserved > 1GiB on device 1");
    assert_eq!((added.trigger, added.pid, added.uid), (1, Some(11), 0));
    assert_eq!((added.fired, added.from_start), (Some(0), false));
    let list = client
        .list_triggers(v1::ListTriggersRequest {})
        .await
        .unwrap();
    assert_eq!(list.into_inner().triggers, [added]);
    client
        .remove_trigger(v1::RemoveTriggerRequest { trigger: 1 })
        .await
        .unwrap();
    let again = client
        .remove_trigger(v1::RemoveTriggerRequest { trigger: 1 })
        .await
        .unwrap_err();
    assert_eq!(
        (again.code(), word(&again)),
        (Code::NotFound, "no_such_trigger")
    );
}

#[tokio::test]
async fn a_mistake_is_told_with_its_column_and_what_would_be_right() {
    let server = Server::start(of_ada_and_bob(), as_user(0));
    let mut client = client(&server).await;
    let mut refused = async |when: &str| client.add_trigger(add(when, None)).await.unwrap_err();
    let error = refused("reserved > 30 GG").await;
    assert_eq!(
        (error.code(), word(&error)),
        (Code::InvalidArgument, "invalid")
    );
    let (what, hint) = split_message(error.message());
    assert_eq!(
        what,
        "\"reserved > 30 GG\", column 15: \"GG\" is no unit of bytes"
    );
    assert!(hint.unwrap().contains("GiB"), "{hint:?}");
    let error = refused("step 12").await;
    assert!(error.message().contains("stands where = should"), "{error}");
    assert!(server.daemon.triggers.lock().unwrap().triggers.is_empty());
}

#[tokio::test]
async fn a_daemon_without_snapshots_says_so() {
    let server = Server::start(of_ada_and_bob(), as_user(0));
    server.daemon.triggers.lock().unwrap().off = true;
    let error = client(&server)
        .await
        .add_trigger(add("oom", None))
        .await
        .unwrap_err();
    assert_eq!(
        (error.code(), word(&error)),
        (Code::FailedPrecondition, "no_triggers")
    );
    assert!(error.message().contains("--snapshots-keep"), "{error}");
}

#[tokio::test]
async fn others_triggers_are_not_shown_and_not_removed() {
    let server = Server::start(busy(), as_user(ADA));
    let mut client = client(&server).await;
    let list = client
        .list_triggers(v1::ListTriggersRequest {})
        .await
        .unwrap()
        .into_inner()
        .triggers;
    let told: Vec<_> = list
        .iter()
        .map(|t| {
            (
                t.trigger,
                t.fired,
                t.skipped.len(),
                t.last_unix_ns.is_some(),
            )
        })
        .collect();
    // Root's triggers are shown without what they did, because that may concern processes of other users.
    assert_eq!(
        told,
        [
            (1, None, 0, false),
            (2, None, 0, false),
            (4, Some(3), 1, true)
        ]
    );
    for trigger in [1, 2, 3, 5] {
        let error = client
            .remove_trigger(v1::RemoveTriggerRequest { trigger })
            .await
            .unwrap_err();
        assert_eq!(error.code(), Code::NotFound, "{trigger}: {error}");
    }
    client
        .remove_trigger(v1::RemoveTriggerRequest { trigger: 4 })
        .await
        .unwrap();
    let left = server.daemon.triggers.lock().unwrap().triggers.len();
    assert_eq!(left, 4);

    // A process of another user is refused like an untraced one, as everywhere.
    let foreign = client.add_trigger(add("oom", Some(12))).await.unwrap_err();
    let untraced = client.add_trigger(add("oom", Some(99))).await.unwrap_err();
    assert_eq!(
        (foreign.code(), word(&foreign)),
        (Code::NotFound, "not_traced")
    );
    assert_eq!(foreign.message().replace("12", "99"), untraced.message());
    let own = client.add_trigger(add("oom", Some(11))).await.unwrap();
    assert_eq!(own.into_inner().trigger.unwrap().uid, ADA);
}

#[tokio::test]
async fn others_snapshots_are_not_shown_and_not_read() {
    let server = Server::start(busy(), as_user(ADA));
    let mut client = client(&server).await;
    let list = client
        .list_kept(v1::ListKeptRequest { pid: None })
        .await
        .unwrap()
        .into_inner();
    let numbers: Vec<_> = list.snapshots.iter().map(|s| s.snapshot).collect();
    assert_eq!(numbers, [7]);
    assert_eq!(list.snapshots[0].uid, ADA);
    assert_eq!(read(&mut client, 7).await.unwrap(), b"file 7");
    let foreign = read(&mut client, 8).await.unwrap_err();
    let privileged = read(&mut client, 9).await.unwrap_err();
    let absent = read(&mut client, 99).await.unwrap_err();
    for (error, number) in [(&foreign, "8"), (&privileged, "9")] {
        assert_eq!(
            (error.code(), word(error)),
            (Code::NotFound, "no_such_snapshot")
        );
        assert_eq!(error.message().replace(number, "99"), absent.message());
    }
}

#[tokio::test]
async fn root_sees_all_and_may_choose() {
    for options in [
        as_user(0),
        ServeOptions {
            access: Access::Everyone,
            ..as_user(ADA)
        },
    ] {
        let server = Server::start(busy(), options);
        let mut client = client(&server).await;
        let triggers = client
            .list_triggers(v1::ListTriggersRequest {})
            .await
            .unwrap()
            .into_inner()
            .triggers;
        assert!(triggers.iter().all(|t| t.fired == Some(3)));
        assert_eq!(triggers.len(), 5);
        let mut listed = async |pid| {
            let question = v1::ListKeptRequest { pid };
            let answer = client.list_kept(question).await.unwrap().into_inner();
            assert_eq!((answer.limit_count, answer.limit_bytes), (16, 1 << 30));
            let numbers = answer.snapshots.iter().map(|s| s.snapshot);
            numbers.collect::<Vec<_>>()
        };
        assert_eq!(listed(None).await, [7, 8, 9]);
        assert_eq!(listed(Some(11)).await, [7, 9]);
        assert_eq!(listed(Some(99)).await, [0; 0]);
        assert_eq!(read(&mut client, 8).await.unwrap(), b"file 8");
    }
}

#[tokio::test]
async fn a_large_file_comes_whole() {
    let server = Server::start(of_ada_and_bob(), as_user(0));
    let content: Vec<u8> = (0..1_000_003u32).flat_map(u32::to_le_bytes).collect();
    server
        .daemon
        .triggers
        .lock()
        .unwrap()
        .kept
        .push((fake::kept(1, 11, ADA), content.clone()));
    let mut client = client(&server).await;
    assert!(read(&mut client, 1).await.unwrap() == content);
}
