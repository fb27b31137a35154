//! Which address is answered by what.

use super::ask::{self, Asked, written};
use super::live::Live;
use super::memory::Memory;
use super::source::Source;
use crate::commands::ranks;
use crate::failure::Failure;
use crate::ui::assets::asset;
use crate::ui::connections::{Answers, Guest};
use crate::ui::door::{Door, Entry, Refusal};
use crate::ui::exact::{self, exact};
use crate::ui::reply::{self, Reply};
use http::header::{ACCEPT, ALLOW, HeaderValue, LOCATION, SET_COOKIE};
use http::request::Parts;
use http::{HeaderMap, Method, Request, StatusCode};
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use hyper::body::{Body, Incoming};
use std::time::Duration;
use tonic::codegen::{Bytes, http};

/// Most bytes of the body of a request. Rules for `Owners` are the longest.
const BODY_MOST: usize = 320 << 10;
/// Time that a client has for the body of a request.
const BODY_WITHIN: Duration = Duration::from_secs(15);

/// Answers what the page asks.
pub(super) struct Routes<'s> {
    door: &'s Door,
    source: &'s Source<'s>,
    live: &'s Live<'s>,
    memory: Memory,
}

impl<'s> Routes<'s> {
    pub(super) fn new(door: &'s Door, source: &'s Source<'s>, live: &'s Live<'s>) -> Routes<'s> {
        Routes {
            door,
            source,
            live,
            memory: Memory::new(),
        }
    }
}

impl Answers for Routes<'_> {
    async fn answer(&self, request: Request<Incoming>, guest: &Guest) -> Reply {
        let (parts, body) = request.into_parts();
        match self.door.judge(&parts.method, &parts.uri, &parts.headers) {
            Entry::Refused(refusal) => refused(refusal),
            Entry::Entered(cookie) => {
                guest.is_known();
                entered(&cookie)
            }
            Entry::In => {
                guest.is_known();
                self.of_page(&parts, body).await
            }
        }
    }
}

impl Routes<'_> {
    async fn of_page(
        &self,
        parts: &Parts,
        body: impl Body<Data = Bytes, Error = hyper::Error>,
    ) -> Reply {
        let path = parts.uri.path();
        let answered = match path.strip_prefix("/api/") {
            None => match (asset(path, &parts.headers), &parts.method) {
                (None, _) => return not_found(path),
                (Some(file), &Method::GET | &Method::HEAD) => return file,
                (Some(_), _) => return only("GET"),
            },
            Some("about") if parts.method == Method::GET => written(&self.source.about()),
            Some("live") if parts.method == Method::GET => match pids(parts) {
                Ok(pids) => return self.live.listen(pids),
                Err(failure) => Err(failure),
            },
            Some("about" | "live") => return only("GET"),
            Some("memory") if parts.method == Method::POST => {
                let question = match read(body).await {
                    Ok(json) => ask::message("SnapshotRequest", &json),
                    Err(reply) => return reply,
                };
                let node = argument(parts, "node");
                let answered = match question {
                    Ok(question) => {
                        self.memory
                            .answer(self.source, question, node.as_deref())
                            .await
                    }
                    Err(failure) => Err(failure),
                };
                return answered.unwrap_or_else(|failure| reply::failed(&failure));
            }
            Some("memory") => return only("POST"),
            Some(path_of) => {
                let Some(method) = path_of.strip_prefix("ask/") else {
                    return not_found(path);
                };
                if parts.method != Method::POST {
                    return only("POST");
                }
                let json = match read(body).await {
                    Ok(json) => json,
                    Err(reply) => return reply,
                };
                match ask::read_question(method, &json) {
                    None => return not_found(path),
                    Some(Err(failure)) => Err(failure),
                    Some(Ok(asked)) => self.asked(asked, parts).await,
                }
            }
        };
        match answered {
            Ok(json) if wants_exact(&parts.headers) => reply::json(exact(&json)),
            Ok(json) => reply::json(json),
            Err(failure) => reply::failed(&failure),
        }
    }

    async fn asked(&self, asked: Asked, parts: &Parts) -> Result<Vec<u8>, Failure> {
        match asked {
            Asked::Of(question) => {
                let node = argument(parts, "node");
                self.source.answer(&question, node.as_deref()).await
            }
            Asked::Ranks(job) => {
                let compared = ranks::compared(&self.source.as_fleet()?, job.as_deref()).await?;
                written(&compared)
            }
        }
    }
}

/// The body of a request, within its time and size.
async fn read(body: impl Body<Data = Bytes, Error = hyper::Error>) -> Result<Bytes, Reply> {
    let body = std::pin::pin!(Limited::new(body, BODY_MOST));
    match tokio::time::timeout(BODY_WITHIN, body.collect()).await {
        Ok(Ok(collected)) => Ok(collected.to_bytes()),
        Ok(Err(error)) if error.is::<LengthLimitError>() => Err(reply::refused(
            StatusCode::PAYLOAD_TOO_LARGE,
            "too_large",
            &format!("the request has more than {BODY_MOST} bytes"),
            "ask for less",
        )),
        Ok(Err(error)) => Err(reply::refused(
            StatusCode::BAD_REQUEST,
            "broken",
            &format!("the request is not whole: {error}"),
            "ask again",
        )),
        Err(_) => Err(reply::refused(
            StatusCode::REQUEST_TIMEOUT,
            "timeout",
            "the request took too long to come",
            "ask again",
        )),
    }
}

/// The value of this name in the address.
fn argument(parts: &Parts, name: &str) -> Option<String> {
    let query = parts.uri.query().unwrap_or_default();
    let mut pairs = form_urlencoded::parse(query.as_bytes());
    pairs.find_map(|(named, value)| (named == name).then(|| value.into_owned()))
}

/// Most processes that one tab follows.
const MOST_PIDS: usize = 64;

/// The processes that a tab follows.
fn pids(parts: &Parts) -> Result<Vec<u32>, Failure> {
    let named = argument(parts, "pids").unwrap_or_default();
    let pids = named.split(',').filter(|pid| !pid.is_empty());
    let pids: Result<Vec<u32>, _> = pids.map(str::parse).collect();
    match pids {
        Ok(pids) if pids.len() <= MOST_PIDS => Ok(pids),
        Ok(pids) => Err(Failure::Usage {
            what: format!("{} processes are more than one tab follows", pids.len()),
            hint: format!("name at most {MOST_PIDS}"),
        }),
        Err(_) => Err(Failure::Usage {
            what: format!("\"{named}\" is no list of processes"),
            hint: "write pids=4242,4243".to_owned(),
        }),
    }
}

fn wants_exact(headers: &HeaderMap) -> bool {
    let accepted = headers.get_all(ACCEPT).iter();
    let mut accepted = accepted.filter_map(|kinds| kinds.to_str().ok());
    accepted.any(|kinds| kinds.contains(exact::ACCEPT))
}

fn entered(cookie: &str) -> Reply {
    let mut reply = reply::sentence(StatusCode::SEE_OTHER, "The page is at /");
    let headers = reply.headers_mut();
    headers.insert(LOCATION, HeaderValue::from_static("/"));
    // The cookie is of letters, digits and punctuation, which a header can have.
    if let Ok(cookie) = HeaderValue::from_str(cookie) {
        headers.insert(SET_COOKIE, cookie);
    }
    reply
}

fn refused(refusal: Refusal) -> Reply {
    let sentence = refusal.sentence();
    match refusal {
        // Whoever follows a link from another page comes without the cookie, although the browser has it by now. A page of this
        // server's own that leads to the same place comes with it.
        Refusal::NoCookie { again: true } => reply::reply(
            StatusCode::FORBIDDEN,
            "text/html; charset=utf-8",
            reply::whole(format!(
                "<!doctype html><meta charset=\"utf-8\"><meta http-equiv=\"refresh\" content=\"0;url=/\">\
                 <title>memscope</title><p>{sentence}\n"
            )),
        ),
        _ => reply::sentence(StatusCode::FORBIDDEN, sentence),
    }
}

fn not_found(path: &str) -> Reply {
    reply::refused(
        StatusCode::NOT_FOUND,
        "not_found",
        &format!("there is nothing at {path:?}"),
        "GET /api/about, GET /api/live, POST /api/memory and POST /api/ask/Stats are there, and other questions as the last",
    )
}

fn only(method: &'static str) -> Reply {
    let mut reply = reply::refused(
        StatusCode::METHOD_NOT_ALLOWED,
        "invalid",
        "this is asked in another way",
        &format!("use {method}"),
    );
    reply
        .headers_mut()
        .insert(ALLOW, HeaderValue::from_static(method));
    reply
}
