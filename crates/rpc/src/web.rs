//! Questions in JSON over HTTP, for whoever has no gRPC: curl, a browser, Grafana.
//!
//! Owns: from a request in JSON to one of gRPC, and from its answer to JSON. Everything else, from who may ask what to how long
//! a request may take, is decided by the layers below, as for gRPC. Only what is a question has a JSON form, and only
//! at the TCP ports. Refuses: requests of any content type that a page of a stranger's could send in a browser without asking
//! (`text/plain` and forms): a browser sends its user's certificate by itself.

use crate::Refusal;
use crate::caller::{Account, Peer};
use crate::flow::{InTime, Streamed};
use crate::roles::Right;
use crate::share::Shares;
use crate::under_way::LARGEST_REQUEST;
use crate::{refusal, rights};
use http_body::{Frame, SizeHint};
use http_body_util::{BodyExt as _, Full, Limited};
use memscope_proto::{ERROR_CODE, FILE_DESCRIPTOR_SET, split_message};
use prost_reflect::prost::Message as _;
use prost_reflect::{DescriptorPool, DynamicMessage, MethodDescriptor};
use serde_json::json;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tonic::body::Body;
use tonic::codegen::http::header::{CACHE_CONTROL, CONTENT_LENGTH, CONTENT_TYPE, TE};
use tonic::codegen::http::{HeaderValue, Method, StatusCode, Version};
use tonic::codegen::{Bytes, Service, http};
use tonic::{Code, Status};

/// Size of what stands before a message of gRPC: whether it is compressed, and its length in four bytes.
const MESSAGE_HEAD: usize = 5;
/// Bytes of an answer that are handed to the transport at a time.
const PIECE: usize = 64 << 10;

/// Answers requests in JSON with what the service below answers to gRPC.
#[derive(Clone)]
pub(crate) struct Web<S> {
    pub(crate) service: S,
    /// The methods; `None` where nobody can ask in JSON. Their description takes megabytes.
    pub(crate) methods: Option<Arc<Methods>>,
    /// How long a client may take to send a request.
    pub(crate) sent_within: Duration,
    /// How long a client may leave a piece of an answer untaken before the answer ends.
    pub(crate) patience: Duration,
    /// How many requests each user may have under way. One counts from before it is read here until its answer is taken,
    /// and the layers below do not count it again.
    pub(crate) requests: Arc<Shares>,
}

/// The methods that can be asked in JSON.
pub(crate) struct Methods(DescriptorPool);

/// The description of the services cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("the service description cannot be read")]
pub struct DescriptionError(#[from] prost_reflect::DescriptorError);

impl Methods {
    pub(crate) fn new() -> Result<Arc<Methods>, DescriptionError> {
        Ok(Arc::new(Methods(DescriptorPool::decode(
            FILE_DESCRIPTOR_SET,
        )?)))
    }

    /// The question with this path; `None`: there is none, or it is answered in a stream, or is no question.
    fn question(&self, path: &str) -> Option<MethodDescriptor> {
        let known = rights::of(path).filter(|method| method.needs == Right::See)?;
        let (service, method) = known.path.trim_start_matches('/').split_once('/')?;
        let service = self.0.get_service_by_name(service)?;
        let found = service.methods().find(|one| one.name() == method);
        found.filter(|one| !one.is_server_streaming() && !one.is_client_streaming())
    }
}

/// What a request is written in.
enum Form {
    Grpc,
    Json,
    Other,
}

fn form(request: &http::Request<Body>) -> Form {
    let told = request.headers().get(CONTENT_TYPE);
    let told = told.and_then(|told| told.to_str().ok()).unwrap_or_default();
    let kind = told.split(';').next().unwrap_or_default().trim();
    let is_remote = request
        .extensions()
        .get::<Peer>()
        .is_some_and(|peer| peer.address.is_some());
    let kind = kind.to_ascii_lowercase();
    match kind.as_str() {
        "application/json" if is_remote => Form::Json,
        _ if kind.starts_with("application/grpc-web") => match is_remote {
            true => Form::Grpc,
            false => Form::Other,
        },
        _ if kind.starts_with("application/grpc") => Form::Grpc,
        _ => Form::Other,
    }
}

impl<S> Service<http::Request<Body>> for Web<S>
where
    S: Service<http::Request<Body>, Response = http::Response<Body>> + Clone + Send + 'static,
    S::Future: Send + 'static,
    S::Error: Send + 'static,
{
    type Response = http::Response<Body>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.service.poll_ready(context)
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        match (form(&request), self.methods.clone()) {
            (Form::Grpc, _) => Box::pin(self.service.call(request)),
            (Form::Other, _) | (Form::Json, None) => {
                let within = self.sent_within;
                Box::pin(async move {
                    let refusal = refusal::invalid(
                        "this is neither gRPC nor JSON",
                        "ask with POST and content-type: application/json, at a TCP port",
                    );
                    discard(request.into_body(), within).await;
                    Ok(refused(StatusCode::UNSUPPORTED_MEDIA_TYPE, &refusal.into()))
                })
            }
            (Form::Json, Some(methods)) => {
                // The one that is ready is used, and a copy of it kept for the next request.
                let kept = self.service.clone();
                let service = std::mem::replace(&mut self.service, kept);
                let (within, patience) = (self.sent_within, self.patience);
                let peer = request.extensions().get::<Peer>();
                let place = self
                    .requests
                    .take(peer.map_or(Account::Unknown, Peer::account));
                Box::pin(async move {
                    let place = match place {
                        Ok(place) => Arc::new(place),
                        Err(refusal) => {
                            discard(request.into_body(), within).await;
                            return Ok(refused(StatusCode::TOO_MANY_REQUESTS, &refusal.into()));
                        }
                    };
                    let response = match asked(&methods, request, within).await {
                        Ok(mut request) => {
                            request.extensions_mut().insert(Arc::clone(&place));
                            answered(service, request).await?
                        }
                        Err((code, status)) => refused(code, &status),
                    };
                    Ok(response.map(|body| {
                        let streamed = Streamed::new(body, (), place, Some(patience));
                        Body::new(streamed.without_status())
                    }))
                })
            }
        }
    }
}

/// Reads a request that is refused, in the limits of one that is answered. An answer before its end makes the transport break the
/// stream off, and a client that still sends, as curl over HTTP/2, loses the answer with it.
async fn discard(body: Body, within: Duration) {
    let mut body = Limited::new(InTime::new(body, within), LARGEST_REQUEST);
    while let Some(Ok(_)) = body.frame().await {}
}

/// The request in gRPC that a request in JSON means.
async fn asked(
    methods: &Methods,
    request: http::Request<Body>,
    within: Duration,
) -> Result<http::Request<Body>, (StatusCode, Status)> {
    let (mut parts, body) = request.into_parts();
    // What is refused is read as well: see `discard`.
    let body = Limited::new(InTime::new(body, within), LARGEST_REQUEST);
    let bytes = match body.collect().await {
        Ok(collected) => collected.to_bytes(),
        Err(error) => return Err(not_read(error)),
    };
    if parts.method != Method::POST {
        let refusal = refusal::invalid("a question is asked with POST", "use POST");
        return Err((StatusCode::METHOD_NOT_ALLOWED, refusal.into()));
    }
    let path = parts.uri.path();
    let Some(method) = methods.question(path) else {
        let refusal = refusal::invalid(
            format!("{path:?} is no question that is answered in JSON"),
            "ask /memscope.v1.Memscope/Stats or another question; what changes something, and what is answered in a \
             stream, is asked with gRPC",
        );
        return Err((StatusCode::NOT_FOUND, refusal.into()));
    };
    let message = message(&method, &bytes).map_err(|error| {
        let refusal = refusal::invalid(
            format!("the request is no {}: {error}", method.input().name()),
            "write the fields as proto/memscope/v1 names them, and values of enums by their whole names",
        );
        (StatusCode::BAD_REQUEST, Status::from(refusal))
    })?;
    let Ok(length) = u32::try_from(message.len()) else {
        return Err(too_large());
    };
    let mut framed = Vec::with_capacity(MESSAGE_HEAD + message.len());
    framed.push(0);
    framed.extend(length.to_be_bytes());
    framed.extend(message);
    // The layers below answer gRPC, which is made for HTTP/2.
    parts.version = Version::HTTP_2;
    parts.headers.remove(CONTENT_LENGTH);
    let grpc = HeaderValue::from_static("application/grpc");
    parts.headers.insert(CONTENT_TYPE, grpc);
    parts
        .headers
        .insert(TE, HeaderValue::from_static("trailers"));
    // An answer that is compressed for gRPC would not be understood here.
    parts.headers.remove("grpc-accept-encoding");
    let body = Body::new(Full::new(Bytes::from(framed)));
    Ok(http::Request::from_parts(parts, body))
}

/// The message in the bytes of protobuf. No text at all is a request without fields.
fn message(method: &MethodDescriptor, json: &[u8]) -> Result<Vec<u8>, serde_json::Error> {
    if json.iter().all(u8::is_ascii_whitespace) {
        return Ok(Vec::new());
    }
    let mut reader = serde_json::Deserializer::from_slice(json);
    let message = DynamicMessage::deserialize(method.input(), &mut reader)?;
    reader.end()?;
    Ok(message.encode_to_vec())
}

fn too_large() -> (StatusCode, Status) {
    let most = LARGEST_REQUEST;
    (
        StatusCode::PAYLOAD_TOO_LARGE,
        Refusal::TooLarge { most }.into(),
    )
}

fn not_read(error: Box<dyn std::error::Error + Send + Sync>) -> (StatusCode, Status) {
    if error.is::<http_body_util::LengthLimitError>() {
        return too_large();
    }
    let status = Status::from_error(error);
    (code_of(status.code()), status)
}

/// Asks the service below, and turns its answer into JSON.
async fn answered<S>(
    mut service: S,
    request: http::Request<Body>,
) -> Result<http::Response<Body>, S::Error>
where
    S: Service<http::Request<Body>, Response = http::Response<Body>>,
{
    let path = request.uri().path().to_owned();
    let (parts, body) = service.call(request).await?.into_parts();
    let status = Status::from_header_map;
    if let Some(status) = status(&parts.headers).filter(|status| status.code() != Code::Ok) {
        return Ok(refused(code_of(status.code()), &status));
    }
    let collected = match body.collect().await {
        Ok(collected) => collected,
        Err(status) => return Ok(refused(code_of(status.code()), &status)),
    };
    // An answer is whole only with its status behind it.
    let end = collected.trailers().and_then(status);
    let end = end.unwrap_or_else(|| Status::internal("the answer has no end — ask again"));
    if end.code() != Code::Ok {
        return Ok(refused(code_of(end.code()), &end));
    }
    let bytes = collected.to_bytes();
    let message = bytes.get(MESSAGE_HEAD..).unwrap_or_default();
    Ok(match memscope_proto::answer_json(&path, message) {
        Some(Ok(json)) => respond(StatusCode::OK, json),
        Some(Err(error)) => refused(
            StatusCode::INTERNAL_SERVER_ERROR,
            &Status::from(Refusal::Internal {
                what: "the answer cannot be written as JSON".to_owned(),
                source: Box::new(error),
            }),
        ),
        None => refused(
            StatusCode::NOT_FOUND,
            &Status::unimplemented("this answer has no form in JSON — ask with gRPC"),
        ),
    })
}

/// The error as JSON.
fn refused(code: StatusCode, status: &Status) -> http::Response<Body> {
    let word = status.metadata().get(ERROR_CODE);
    let word = word.and_then(|word| word.to_str().ok()).map(str::to_owned);
    let word = word.unwrap_or_else(|| format!("{:?}", status.code()).to_lowercase());
    let (what, hint) = split_message(status.message());
    let error = json!({"error": {"code": word, "message": what, "hint": hint}});
    respond(code, error.to_string().into_bytes())
}

fn respond(code: StatusCode, mut json: Vec<u8>) -> http::Response<Body> {
    json.push(b'\n');
    let mut response = http::Response::new(Body::new(Pieces(Bytes::from(json))));
    *response.status_mut() = code;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(
        "x-content-type-options",
        HeaderValue::from_static("nosniff"),
    );
    response
}

/// An answer in pieces. Each is a copy, so that nothing but one piece is left of an answer that was given up. The body ends
/// only after the last piece, and so its request counts until the transport has room for more.
struct Pieces(Bytes);

impl http_body::Body for Pieces {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let length = PIECE.min(self.0.len());
        let piece = self.0.split_to(length);
        let is_some = !piece.is_empty();
        Poll::Ready(is_some.then(|| Ok(Frame::data(Bytes::copy_from_slice(&piece)))))
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.0.len() as u64)
    }
}

/// The status of HTTP that fits a code of gRPC.
fn code_of(code: Code) -> StatusCode {
    match code {
        Code::Ok => StatusCode::OK,
        Code::InvalidArgument | Code::OutOfRange => StatusCode::BAD_REQUEST,
        Code::FailedPrecondition | Code::Aborted | Code::AlreadyExists => StatusCode::CONFLICT,
        Code::NotFound => StatusCode::NOT_FOUND,
        Code::PermissionDenied => StatusCode::FORBIDDEN,
        Code::Unauthenticated => StatusCode::UNAUTHORIZED,
        Code::ResourceExhausted => StatusCode::TOO_MANY_REQUESTS,
        Code::Unimplemented => StatusCode::NOT_IMPLEMENTED,
        Code::Unavailable | Code::Cancelled => StatusCode::SERVICE_UNAVAILABLE,
        Code::DeadlineExceeded => StatusCode::GATEWAY_TIMEOUT,
        Code::Unknown | Code::Internal | Code::DataLoss => StatusCode::INTERNAL_SERVER_ERROR,
    }
}
