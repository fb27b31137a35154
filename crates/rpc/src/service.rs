//! The RPCs. Each one finds the caller, checks the request, asks the daemon, and turns its answer into messages.

use crate::access::Access;
use crate::asked::{attach_options, attach_scope, detach_scope, mark};
use crate::audit::Target;
use crate::caller::{Caller, identified};
use crate::daemon::{AttachRequest, Daemon, DetachScope, EventFilter, Moment, Window};
use crate::exact::Strict;
use crate::export::ChunkStream;
use crate::options::ServeOptions;
use crate::refusal::invalid;
use crate::stacks::{self, Question as StackQuestion};
use crate::turns::{Turn, Turns};
use crate::under_way::{UnderWay, Unhurried};
use crate::{Refusal, asked, event, export, kinds, leaks, named};
use memscope_export::{SnapshotParts, Writer, writer};
use memscope_ledger::report::SnapshotReport;
use memscope_ledger::{Answer, Answered, Asked, Question, Senseless, Who};
use memscope_proto::formats::{self, Tells};
use memscope_proto::v1;
use memscope_service::memscope_server::Memscope;
use std::pin::Pin;
use std::sync::Arc;
use tokio::sync::watch;
use tokio_stream::{Stream, StreamExt};
use tonic::{Request, Response, Status};

/// Most holders in an answer about leaks.
const MOST_HOLDERS_OF_LEAKS: u32 = 10;

#[derive(Clone)]
pub(crate) struct Service {
    pub(crate) daemon: Arc<dyn Daemon>,
    options: ServeOptions,
    ended: watch::Receiver<bool>,
    turns: Arc<Turns>,
}

impl Service {
    pub(crate) fn new(
        daemon: Arc<dyn Daemon>,
        options: ServeOptions,
        ended: watch::Receiver<bool>,
    ) -> Self {
        Service {
            daemon,
            options,
            ended,
            turns: Arc::new(Turns::new()),
        }
    }

    pub(crate) fn access(&self) -> Access {
        self.options.access
    }

    pub(crate) fn caller<T>(&self, request: &Request<T>) -> Result<Caller, Status> {
        identified(request.extensions())
    }

    /// The processes that a question is about and that the caller may see.
    async fn visible(&self, caller: &Caller, pid: Option<u32>) -> Result<Vec<Who>, Refusal> {
        let access = self.access();
        access.visible(self.daemon.as_ref(), caller, pid).await
    }

    /// The caller of a request about `pid`. Refused if they may not see that process.
    pub(crate) async fn asker<T>(&self, request: &Request<T>, pid: u32) -> Result<Caller, Status> {
        let caller = self.caller(request)?;
        self.visible(&caller, Some(pid)).await?;
        Ok(caller)
    }

    /// Answers a request with a question. All questions go this way, so that each answer contains only what the caller
    /// may see, and is refused if it is not exact and the caller wants only an exact one.
    async fn ask<Q>(&self, request: Request<Q>) -> Result<Response<Q::Reply>, Status>
    where
        Q: Question + Into<Asked>,
        Q::Reply: TryFrom<Answered>,
    {
        let caller = self.caller(&request)?;
        let strict = Strict::of(&request);
        let reply = self.answer(&caller, request.into_inner()).await?;
        if let Some(kind) = Q::KIND {
            strict.check(kind, Q::coverage(&reply))?;
        }
        strict.known(Q::unknown(&reply))?;
        Ok(Response::new(reply))
    }

    /// Answers a question about the processes that the caller may see now. The daemon gets their handles, not their
    /// pids: if another process gets one of the pids in the meantime, nothing of it is shown.
    async fn answer<Q>(&self, caller: &Caller, question: Q) -> Result<Q::Reply, Refusal>
    where
        Q: Question + Into<Asked>,
        Q::Reply: TryFrom<Answered>,
    {
        question
            .check()
            .map_err(|Senseless { what, hint }| Refusal::Invalid { what, hint })?;
        let whose = self.visible(caller, question.pid()).await?;
        self.answer_of(&whose, question).await
    }

    /// The same about these processes.
    async fn answer_of<Q>(&self, whose: &[Who], question: Q) -> Result<Q::Reply, Refusal>
    where
        Q: Question + Into<Asked>,
        Q::Reply: TryFrom<Answered>,
    {
        let of = whose.iter().map(|who| who.handle).collect();
        let answered = self.daemon.ask(question.into(), of).await?;
        Q::Reply::try_from(answered).map_err(|_| Refusal::Internal {
            what: "another question was answered".to_owned(),
            source: std::any::type_name::<Q>().into(),
        })
    }

    /// The moment that a request asks for, `None` for now. A mark's name is looked up.
    async fn moment(
        &self,
        caller: &Caller,
        pid: u32,
        at: Option<v1::Moment>,
    ) -> Result<Option<Moment>, Refusal> {
        let names = NamesOf {
            service: self,
            caller,
            pid,
        };
        named::moment(pid, at, &names).await
    }

    /// The two moments of a comparison. Ages are counted back from one moment, so that they keep their order however
    /// long the answer about the first of them takes.
    async fn moments(
        &self,
        caller: &Caller,
        pid: u32,
        both: [Option<v1::Moment>; 2],
    ) -> Result<[Option<Moment>; 2], Refusal> {
        let [first, second] = both;
        let mut moments = [
            self.moment(caller, pid, first).await?,
            self.moment(caller, pid, second).await?,
        ];
        if moments
            .iter()
            .any(|moment| matches!(moment, Some(Moment::Ago(_))))
        {
            let end_ns = self.daemon.end().await?;
            for moment in &mut moments {
                if let Some(Moment::Ago(ns)) = moment {
                    *moment = Some(Moment::Boot(end_ns.saturating_sub(*ns)));
                }
            }
        }
        Ok(moments)
    }

    /// Waits for a turn to make snapshots, which must be held until they are made. A client that goes away while it
    /// waits gives up its place.
    async fn turn(&self, caller: &Caller, under_way: &UnderWay) -> Result<Turn, Refusal> {
        let wanted = under_way.wanted();
        tokio::select! {
            turn = self.turns.wait(caller) => turn,
            () = wanted.gone() => Err(Refusal::NotWanted),
        }
    }

    /// Adds what holds the blocks of the groups that grow. Where that cannot be read, a note says why: the rest of the answer stays right.
    async fn add_holders(
        &self,
        caller: &Caller,
        answer: &mut v1::LeaksResponse,
        under_way: &UnderWay,
    ) {
        // Objects hold blocks of a pool. Other memory has no block of which they could be asked.
        let growing = answer.groups.iter().filter(|group| {
            group.verdict() == v1::Verdict::Growing && group.source() == v1::Source::Pool
        });
        let question = v1::HoldersRequest {
            pid: answer.pid,
            addresses: growing.flat_map(|group| group.examples.clone()).collect(),
            limit: MOST_HOLDERS_OF_LEAKS,
            alike: true,
        };
        if question.addresses.is_empty() {
            return;
        }
        match self.take_holders(caller, question, under_way).await {
            Ok(told) => {
                answer.holders = told.holders;
                answer.looked_at = told.blocks;
                answer.unheld = told.unheld;
                // What limited the reading matters where it left something open.
                if told.unheld.is_some_and(|unheld| unheld.count > 0) {
                    let known = answer.coverage.len();
                    for note in told.coverage {
                        if !answer.coverage[..known]
                            .iter()
                            .any(|one| one.code == note.code)
                        {
                            answer.coverage.push(note);
                        }
                    }
                }
            }
            // A recording and an ended process have no objects; nobody expects them.
            Err(Refusal::Replaying | Refusal::Ended { .. } | Refusal::NotWanted) => {}
            Err(refusal) => answer.coverage.push(v1::CoverageNote {
                code: "holders_not_read".to_owned(),
                text: format!("which objects hold the blocks that grow is not known: {refusal}"),
                ..v1::CoverageNote::default()
            }),
        }
    }

    async fn take_holders(
        &self,
        caller: &Caller,
        question: v1::HoldersRequest,
        under_way: &UnderWay,
    ) -> Result<v1::HoldersResponse, Refusal> {
        let (_turn, before) = self.before_reading(caller, question.pid, under_way).await?;
        self.daemon.holders(question, before).await
    }

    /// A process as it is before its objects are read, and the turn that must be held until they are.
    async fn before_reading(
        &self,
        caller: &Caller,
        pid: u32,
        under_way: &UnderWay,
    ) -> Result<(Turn, Arc<SnapshotReport>), Refusal> {
        let turn = self.turn(caller, under_way).await?;
        let before = self.daemon.snapshot(pid, None, under_way.wanted()).await?;
        self.access().check(caller, &before.process.who())?;
        Ok((turn, before))
    }

    async fn take_snapshot(
        &self,
        caller: &Caller,
        pid: u32,
        at: Option<Moment>,
        under_way: &UnderWay,
    ) -> Result<Arc<SnapshotReport>, Status> {
        let wanted = under_way.wanted();
        let report = self.daemon.snapshot(pid, at, wanted).await?;
        self.access().check(caller, &report.process.who())?;
        Ok(report)
    }

    async fn take_course(
        &self,
        caller: &Caller,
        question: v1::FluctuationRequest,
        under_way: &UnderWay,
    ) -> Result<v1::FluctuationResponse, Refusal> {
        question
            .check()
            .map_err(|Senseless { what, hint }| Refusal::Invalid { what, hint })?;
        let pid = question.pid;
        let whose = self.visible(caller, Some(pid)).await?;
        let of = whose.first().ok_or(Refusal::NotTraced { pid })?.handle;
        let from = match question.from_boot_ns {
            Some(ns) => Some(Moment::Boot(ns)),
            None => self.moment(caller, pid, question.from).await?,
        };
        let to = match question.to_boot_ns {
            Some(ns) => Some(Moment::Boot(ns)),
            None => self.moment(caller, pid, question.to).await?,
        };
        let window = Window {
            pid,
            of,
            from,
            to,
            intervals: question.intervals,
        };
        let _turn = self.turn(caller, under_way).await?;
        self.daemon.course(window, under_way.wanted()).await
    }

    /// Asks for the stacks of one or two moments. Merging them into one report ([`stacks::Answer::report`]) takes long,
    /// so it is left to a blocking thread.
    async fn take_stacks(
        &self,
        caller: &Caller,
        pid: u32,
        question: StackQuestion,
        strict: Strict,
        under_way: &UnderWay,
    ) -> Result<stacks::Answer, Status> {
        let access = self.access();
        let may_see = |who: Who| access.check(caller, &who);
        let wanted = under_way.wanted();
        let answer = question
            .ask(self.daemon.as_ref(), pid, wanted, may_see)
            .await?;
        strict.check(question.kind(), &answer.notes())?;
        Ok(answer)
    }
}

/// Runs `work` to its end even if the client goes away, because an attach must not stop half-way.
pub(crate) async fn to_the_end<T: Send + 'static>(
    what: &'static str,
    work: impl Future<Output = Result<T, Refusal>> + Send + 'static,
) -> Result<T, Refusal> {
    match tokio::spawn(work).await {
        Ok(result) => result,
        Err(error) => Err(Refusal::Internal {
            what: format!("{what} failed"),
            source: Box::new(error),
        }),
    }
}

/// Whether a question about the course gives its window by its ends.
fn has_window(question: &v1::FluctuationRequest) -> bool {
    let by_number = question.from_boot_ns.or(question.to_boot_ns).is_some();
    by_number || question.from.is_some() || question.to.is_some()
}

/// Kind of the answer, by which coverage notes are judged: a picture of now, or of an earlier moment.
fn picture(earlier: bool) -> Answer {
    match earlier {
        true => Answer::EarlierPicture,
        false => Answer::Picture,
    }
}

/// What the marks and the peaks of a process mean to one caller.
struct NamesOf<'s> {
    service: &'s Service,
    caller: &'s Caller,
    pid: u32,
}

impl NamesOf<'_> {
    fn all_marks(&self) -> v1::MarksRequest {
        v1::MarksRequest {
            pid: self.pid,
            limit: 0,
            include_framework: true,
        }
    }
}

impl named::Names for NamesOf<'_> {
    async fn marks(&self) -> Result<v1::MarksResponse, Refusal> {
        self.service.answer(self.caller, self.all_marks()).await
    }

    async fn marks_before(&self, now: &v1::MarksResponse) -> Vec<v1::MarksResponse> {
        let image = |marks: &v1::MarksResponse| {
            let process = marks.process.as_ref()?;
            Some(process.facts.as_ref()?.memory_image())
        };
        let handle = now.process.as_ref().map(|process| process.handle);
        let (Some(present), Ok(mut whose)) =
            (image(now), self.service.visible(self.caller, None).await)
        else {
            return Vec::new();
        };
        whose.retain(|who| who.pid == self.pid && Some(who.handle.0) != handle);
        let mut all = Vec::new();
        for who in whose.into_iter().rev() {
            // One that was forgotten in the meantime has no marks any more.
            let marks = self.service.answer_of(&[who], self.all_marks()).await;
            let marks = marks.ok();
            all.extend(marks.filter(|marks| image(marks).is_some_and(|one| one.is(&present))));
        }
        all
    }

    async fn stats(&self) -> Result<v1::StatsResponse, Refusal> {
        let question = v1::StatsRequest { pid: self.pid };
        self.service.answer(self.caller, question).await
    }
}

type Streaming<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

#[tonic::async_trait]
impl Memscope for Service {
    async fn attach(
        &self,
        request: Request<v1::AttachRequest>,
    ) -> Result<Response<v1::AttachResponse>, Status> {
        Target::set(&request, || asked::attached(request.get_ref()));
        let caller = self.caller(&request)?;
        let request = request.into_inner();
        let request = AttachRequest {
            options: attach_options(&request)?,
            scope: attach_scope(request.scope)?,
        };
        let daemon = Arc::clone(&self.daemon);
        let work = async move { daemon.attach(caller, request).await };
        Ok(Response::new(to_the_end("the attach", work).await?))
    }

    async fn detach(
        &self,
        request: Request<v1::DetachRequest>,
    ) -> Result<Response<v1::DetachResponse>, Status> {
        Target::set(&request, || asked::detached(request.get_ref()));
        let caller = self.caller(&request)?;
        let scope = detach_scope(request.into_inner().scope)?;
        let daemon = Arc::clone(&self.daemon);
        if let DetachScope::Pid(pid) = scope {
            let known = self.daemon.who(Some(pid)).await?;
            // What is attached by itself may still wait for that, and no answer knows of it. The daemon decides who may see it.
            if !known.is_empty() {
                self.visible(&caller, Some(pid)).await?;
            }
        }
        let work = async move { daemon.detach(caller, scope).await };
        Ok(Response::new(to_the_end("the detach", work).await?))
    }

    async fn list(
        &self,
        request: Request<v1::ListRequest>,
    ) -> Result<Response<v1::ListResponse>, Status> {
        self.ask(request).await
    }

    async fn stats(
        &self,
        request: Request<v1::StatsRequest>,
    ) -> Result<Response<v1::StatsResponse>, Status> {
        self.ask(request).await
    }

    async fn devices(
        &self,
        request: Request<v1::DevicesRequest>,
    ) -> Result<Response<v1::DevicesResponse>, Status> {
        self.ask(request).await
    }

    async fn leaks(
        &self,
        request: Request<v1::LeaksRequest>,
    ) -> Result<Response<v1::LeaksResponse>, Status> {
        let caller = self.caller(&request)?;
        let under_way = UnderWay::of(&request);
        let with_holders = request.get_ref().holders;
        let mut answer = self.ask(request).await?;
        leaks::bounded(answer.get_mut());
        if with_holders && answer.get_ref().growing_groups > 0 {
            self.add_holders(&caller, answer.get_mut(), &under_way)
                .await;
        }
        Ok(answer)
    }

    async fn steps(
        &self,
        request: Request<v1::StepsRequest>,
    ) -> Result<Response<v1::StepsResponse>, Status> {
        self.ask(request).await
    }

    async fn mark(
        &self,
        request: Request<v1::MarkRequest>,
    ) -> Result<Response<v1::MarkResponse>, Status> {
        Target::set(&request, || {
            let mark = request.get_ref();
            format!("pid={} name={:?}", mark.pid, mark.name)
        });
        let pid = request.get_ref().pid;
        let caller = self.caller(&request)?;
        let access = self.access().to_change();
        let whose = access
            .visible(self.daemon.as_ref(), &caller, Some(pid))
            .await?;
        let of = whose.into_iter().next();
        let of = of.ok_or(Refusal::NotTraced { pid })?;
        let mark = mark(request.into_inner())?;
        let event = self.daemon.mark(of, mark).await?;
        Ok(Response::new(v1::MarkResponse {
            event: Some(event.into()),
        }))
    }

    async fn marks(
        &self,
        request: Request<v1::MarksRequest>,
    ) -> Result<Response<v1::MarksResponse>, Status> {
        self.ask(request).await
    }

    async fn fluctuation(
        &self,
        request: Request<v1::FluctuationRequest>,
    ) -> Result<Response<v1::FluctuationResponse>, Status> {
        if !has_window(request.get_ref()) {
            return self.ask(request).await;
        }
        let caller = self.caller(&request)?;
        let (strict, under_way) = (Strict::of(&request), UnderWay::of(&request));
        let answer = self
            .take_course(&caller, request.into_inner(), &under_way)
            .await?;
        strict.check(Answer::Fluctuation, &answer.coverage)?;
        Ok(Response::new(answer))
    }

    type SnapshotStream = Streaming<v1::SnapshotPart>;

    async fn snapshot(
        &self,
        request: Request<v1::SnapshotRequest>,
    ) -> Result<Response<Self::SnapshotStream>, Status> {
        Target::set(&request, || format!("pid={}", request.get_ref().pid));
        let pid = request.get_ref().pid;
        let caller = self.asker(&request, pid).await?;
        let (strict, under_way) = (Strict::of(&request), UnderWay::of(&request));
        let question = request.into_inner();
        let kind = picture(question.at.is_some());
        let turn = self.turn(&caller, &under_way).await?;
        let at = self.moment(&caller, pid, question.at).await?;
        let report = self.take_snapshot(&caller, pid, at, &under_way).await?;
        drop(turn);
        strict.check(kind, &report.coverage)?;
        let parts = match question.stacks {
            true => SnapshotParts::new(report).with_stacks(),
            false => SnapshotParts::new(report),
        };
        // Each part is made when the client has room for it.
        let parts = tokio_stream::iter(parts).map(Ok);
        Ok(Response::new(Box::pin(parts)))
    }

    async fn diff(
        &self,
        request: Request<v1::DiffRequest>,
    ) -> Result<Response<v1::DiffResponse>, Status> {
        let pid = request.get_ref().pid;
        let caller = self.asker(&request, pid).await?;
        let (strict, under_way) = (Strict::of(&request), UnderWay::of(&request));
        let question = request.into_inner();
        let Some(from) = question.from else {
            return Err(invalid(
                "the request names no first moment",
                "give a time, an age or an event",
            )
            .into());
        };
        let _turn = self.turn(&caller, &under_way).await?;
        let both = [Some(from), question.to];
        let [from, to] = self.moments(&caller, pid, both).await?;
        let to = self.take_snapshot(&caller, pid, to, &under_way).await?;
        let from = self.take_snapshot(&caller, pid, from, &under_way).await?;
        let work = move || memscope_export::diff(&from, &to);
        let answer = tokio::task::spawn_blocking(work)
            .await
            .map_err(|error| Status::internal(format!("the comparison failed: {error}")))?;
        strict.check(Answer::EarlierPicture, &answer.coverage)?;
        Ok(Response::new(answer))
    }

    async fn pool(
        &self,
        request: Request<v1::PoolRequest>,
    ) -> Result<Response<v1::PoolResponse>, Status> {
        let pid = request.get_ref().pid;
        let caller = self.asker(&request, pid).await?;
        let (strict, under_way) = (Strict::of(&request), UnderWay::of(&request));
        let question = request.into_inner();
        let kind = picture(question.at.is_some());
        let _turn = self.turn(&caller, &under_way).await?;
        let both = [question.from, question.at];
        let [from, at] = self.moments(&caller, pid, both).await?;
        let now = self.take_snapshot(&caller, pid, at, &under_way).await?;
        strict.check(kind, &now.coverage)?;
        let before = match from {
            Some(_) => {
                let before = self.take_snapshot(&caller, pid, from, &under_way).await?;
                strict.check(Answer::EarlierPicture, &before.coverage)?;
                Some(before)
            }
            None => None,
        };
        let work = move || memscope_export::pool(&now, before.as_deref());
        let answer = tokio::task::spawn_blocking(work)
            .await
            .map_err(|error| Status::internal(format!("the description failed: {error}")))?;
        Ok(Response::new(answer))
    }

    async fn owners(
        &self,
        request: Request<v1::OwnersRequest>,
    ) -> Result<Response<v1::OwnersResponse>, Status> {
        let pid = request.get_ref().pid;
        let caller = self.asker(&request, pid).await?;
        let (strict, under_way) = (Strict::of(&request), UnderWay::of(&request));
        let question = request.into_inner();
        asked::addresses(&question.addresses)?;
        let kind = picture(question.at.is_some());
        let at = self.moment(&caller, pid, question.at.clone()).await?;
        let (_turn, before) = self.before_reading(&caller, pid, &under_way).await?;
        let wanted = under_way.wanted();
        let (answer, of) = self.daemon.owners(question, before, at, wanted).await?;
        self.access().check(&caller, &of)?;
        strict.check(kind, &answer.coverage)?;
        strict.check(Answer::Owners, &answer.coverage)?;
        Ok(Response::new(answer))
    }

    async fn holders(
        &self,
        request: Request<v1::HoldersRequest>,
    ) -> Result<Response<v1::HoldersResponse>, Status> {
        let pid = request.get_ref().pid;
        let caller = self.asker(&request, pid).await?;
        let (strict, under_way) = (Strict::of(&request), UnderWay::of(&request));
        let question = request.into_inner();
        asked::addresses(&question.addresses)?;
        let answer = self.take_holders(&caller, question, &under_way).await?;
        strict.check(Answer::Picture, &answer.coverage)?;
        Ok(Response::new(answer))
    }

    async fn stacks(
        &self,
        request: Request<v1::StacksRequest>,
    ) -> Result<Response<v1::StacksResponse>, Status> {
        let (strict, under_way) = (Strict::of(&request), UnderWay::of(&request));
        let question = request.get_ref().clone();
        let by = stacks::grouping(question.by)?;
        let caller = self.asker(&request, question.pid).await?;
        let both = [question.from, question.at];
        let [from, at] = self.moments(&caller, question.pid, both).await?;
        let asked = StackQuestion::new(question.view, at, from)?;
        let _turn = self.turn(&caller, &under_way).await?;
        let answer = self
            .take_stacks(&caller, question.pid, asked, strict, &under_way)
            .await?;
        let work = move || {
            let limit = question.limit as usize;
            let report = answer.report();
            stacks::stacks(&report, asked.view, by, question.cumulative, limit)
        };
        let answer = tokio::task::spawn_blocking(work)
            .await
            .map_err(|error| Status::internal(format!("summing up failed: {error}")))?;
        Ok(Response::new(answer))
    }

    type ExportStream = ChunkStream;

    async fn export(
        &self,
        request: Request<v1::ExportRequest>,
    ) -> Result<Response<Self::ExportStream>, Status> {
        Target::set(&request, || {
            let wanted = request.get_ref();
            let format = formats::of_wire(wanted.format).map_or("unknown", |format| format.name);
            format!("pid={} format={format}", wanted.pid)
        });
        let (strict, under_way) = (Strict::of(&request), UnderWay::of(&request));
        let question = request.get_ref().clone();
        let caller = self.asker(&request, question.pid).await?;
        let format = formats::of_wire(question.format);
        let Some((format, writer)) = format.and_then(|f| Some((f, writer(f.wire)?))) else {
            return Err(invalid(
                "this daemon does not write that format",
                "ask for memory-viz, or update the daemon",
            )
            .into());
        };
        let write = match writer {
            Writer::Snapshot(write) => write,
            Writer::Stacks(write) => {
                let both = [question.from.clone(), question.at.clone()];
                let [from, at] = self.moments(&caller, question.pid, both).await?;
                let differences = format.tells == Tells::Stacks { differences: true };
                let asked = stacks::exported(differences, &question, (at, from))?;
                let turn = self.turn(&caller, &under_way).await?;
                let answer = self
                    .take_stacks(&caller, question.pid, asked, strict, &under_way)
                    .await?;
                drop(turn);
                let stream = export::stream(under_way, move |out, _| {
                    let report = answer.report();
                    write(&report, asked.view, question.differential, out)?;
                    Ok((report.as_of, report.coverage))
                });
                return Ok(Response::new(stream));
            }
        };
        let kind = match format.tells {
            Tells::Moment => picture(question.at.is_some()),
            _ => Answer::Course,
        };
        let turn = self.turn(&caller, &under_way).await?;
        let at = self.moment(&caller, question.pid, question.at).await?;
        let report = self
            .take_snapshot(&caller, question.pid, at, &under_way)
            .await?;
        drop(turn);
        strict.check(kind, &report.coverage)?;
        let instead = self.options.exporter.clone();
        let instead = instead.filter(|_| format.wire == v1::ExportFormat::MemoryViz);
        let stream = export::stream(under_way, move |out, tell| {
            match instead {
                Some(exporter) => exporter(&report, out, tell)?,
                None => write(&report, out, tell)?,
            }
            Ok((report.as_of, report.coverage.clone()))
        });
        Ok(Response::new(stream))
    }

    type RecordStream = export::ChunkStream;

    async fn record(
        &self,
        request: Request<v1::RecordRequest>,
    ) -> Result<Response<Self::RecordStream>, Status> {
        Target::set(&request, || "journal".to_owned());
        let caller = self.caller(&request)?;
        if !caller.is_admin() {
            return Err(Refusal::NotPermitted {
                what: "have the journal, which tells of all processes".into(),
            }
            .into());
        }
        let under_way = UnderWay::of(&request);
        let write = self.daemon.recording().await?;
        let stream = export::recording(under_way, write);
        Ok(Response::new(stream))
    }

    type EventsStream = Streaming<v1::Event>;

    async fn events(
        &self,
        request: Request<v1::EventsRequest>,
    ) -> Result<Response<Self::EventsStream>, Status> {
        let pid = request.get_ref().pid;
        let caller = match pid {
            Some(pid) => self.asker(&request, pid).await?,
            None => self.caller(&request)?,
        };
        let kinds = kinds::chosen(&request.get_ref().kinds).map_err(|word| {
            invalid(
                format!("{word:?} is no kind of event"),
                format!(
                    "the kinds are {}, {}",
                    kinds::NAMES.join(", "),
                    kinds::FRAMEWORK_MARK
                ),
            )
        })?;
        let filter = EventFilter {
            pid,
            caller: (!self.access().shows_all(&caller)).then(|| caller.clone()),
            kinds,
        };
        let items = self.daemon.events(filter.clone()).await?;
        let ended = self.ended.clone();
        let ended = tokio_stream::once(()).then(move |()| {
            let mut ended = ended.clone();
            // An error means that the server is gone, which also ends the stream.
            async move {
                let _ = ended.wait_for(|ended| *ended).await;
            }
        });
        // Two streams, read in turn; the end of either ends both.
        let items = items.map(Some).chain(tokio_stream::once(None));
        let events = items
            .merge(ended.map(|()| None))
            .map_while(|item| item)
            .filter(move |item| filter.accepts(item))
            .map(|item| Ok(event::event(&item)));
        let events: Self::EventsStream = Box::pin(events);
        let mut response = Response::new(events);
        response.extensions_mut().insert(Unhurried);
        Ok(response)
    }

    async fn status(
        &self,
        request: Request<v1::StatusRequest>,
    ) -> Result<Response<v1::StatusResponse>, Status> {
        let caller = self.caller(&request)?;
        let mut status = self.daemon.status().await?;
        let visible = self.visible(&caller, None).await?;
        status.traced_processes = visible.iter().filter(|who| who.is_live).count() as u64;
        if !self.access().shows_all(&caller) {
            for library in &mut status.libraries {
                library
                    .pids
                    .retain(|pid| visible.iter().any(|who| who.pid == *pid));
            }
            status.libraries.retain(|library| !library.pids.is_empty());
            let own = caller.account();
            status.rules.retain(|rule| {
                own.wire_uid() == rule.uid && own.certificate() == rule.certificate.as_deref()
            });
            status.messages.clear();
            crate::access::leave_out_totals(&mut status);
        }
        Ok(Response::new(status))
    }
}
