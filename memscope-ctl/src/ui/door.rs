//! Who may ask: whoever came once with the token has a cookie since, and nobody else gets anything.
//!
//! A browser sends requests for every page that it shows, also for a stranger's. So it matters under which name the request came (a
//! stranger's name may be made to point at this machine), and which page made it.

use super::secret::Secret;
use http::header::{COOKIE, HOST, HeaderMap, HeaderValue, ORIGIN};
use http::{Method, Uri};
use std::cell::RefCell;
use std::io;
use tonic::codegen::http;

/// What a browser says of who made the request: a page of this program, or another.
const SITE: &str = "sec-fetch-site";

/// What becomes of a request.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Entry {
    /// It is answered.
    In,
    /// It came with the token: whoever sent it gets this cookie.
    Entered(String),
    /// It is not answered, with the reason.
    Refused(Refusal),
}

/// Why a request is not answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// It names another host.
    ForeignHost,
    /// A page of somebody else made it.
    ForeignPage,
    /// The token is wrong, or was used before.
    Token,
    /// There is no cookie. `again`: a page of somebody else led here, so that the browser may have kept the cookie back.
    NoCookie { again: bool },
}

/// The door of one server.
pub(crate) struct Door {
    port: u16,
    /// The token, until it is used.
    token: RefCell<Option<Secret>>,
    cookie: Secret,
}

impl Door {
    /// A door of the server at this port.
    pub(crate) fn new(port: u16) -> io::Result<Door> {
        Ok(Door {
            port,
            token: RefCell::new(Some(Secret::new()?)),
            cookie: Secret::new()?,
        })
    }

    /// Address for the browser, with the token.
    pub(crate) fn address(&self) -> String {
        let token = self.token.borrow();
        let token = token.as_ref().map(Secret::word).unwrap_or_default();
        format!("http://127.0.0.1:{}/?token={token}", self.port)
    }

    /// Cookies are shared by all ports of a host, so the name has the port.
    fn cookie_name(&self) -> String {
        format!("memscope-{}", self.port)
    }

    /// Judges a request.
    pub(crate) fn judge(&self, method: &Method, uri: &Uri, headers: &HeaderMap) -> Entry {
        if !self.is_of_this_host(uri, headers) {
            return Entry::Refused(Refusal::ForeignHost);
        }
        if !self.is_of_own_page(uri, headers) {
            return Entry::Refused(Refusal::ForeignPage);
        }
        let said = uri.query().and_then(token_in);
        if let (true, Some(said)) = (uri.path() == "/", said) {
            return match method == Method::GET && self.takes(said) {
                true => Entry::Entered(format!(
                    "{}={}; Path=/; HttpOnly; SameSite=Strict",
                    self.cookie_name(),
                    self.cookie.word()
                )),
                false => Entry::Refused(Refusal::Token),
            };
        }
        match self.has_cookie(headers) {
            true => Entry::In,
            false => Entry::Refused(Refusal::NoCookie {
                again: uri.path() == "/" && !is_by_own_page_or_person(headers),
            }),
        }
    }

    /// Whether this is the token. It is used up then.
    fn takes(&self, said: &str) -> bool {
        let mut token = self.token.borrow_mut();
        let is_right = token.as_ref().is_some_and(|token| token.is(said));
        if is_right {
            *token = None;
        }
        is_right
    }

    fn names(&self) -> [String; 3] {
        ["127.0.0.1", "[::1]", "localhost"].map(|host| format!("{host}:{}", self.port))
    }

    fn is_of_this_host(&self, uri: &Uri, headers: &HeaderMap) -> bool {
        let names = self.names();
        let is_ours = |said: &str| names.iter().any(|name| said.eq_ignore_ascii_case(name));
        let in_address = uri.authority().is_none_or(|said| is_ours(said.as_str()));
        in_address && only(headers, HOST.as_str()).is_some_and(is_ours)
    }

    /// Whether the request is of a page of this program, or of no page. A navigation to the page itself may come from anywhere: it shows
    /// nothing to whoever led there.
    fn is_of_own_page(&self, uri: &Uri, headers: &HeaderMap) -> bool {
        let from = headers.get_all(ORIGIN).iter().collect::<Vec<_>>();
        let is_own = |origin: &HeaderValue| {
            let host = only(headers, HOST.as_str()).unwrap_or_default();
            origin == &format!("http://{host}")
        };
        let by_origin = match from[..] {
            [] => true,
            [origin] => is_own(origin),
            _ => false,
        };
        by_origin && (uri.path() == "/" || is_by_own_page_or_person(headers))
    }

    fn has_cookie(&self, headers: &HeaderMap) -> bool {
        let name = self.cookie_name();
        let sent = headers.get_all(COOKIE).iter();
        let mut pairs = sent
            .filter_map(|cookies| cookies.to_str().ok())
            .flat_map(|cookies| cookies.split(';'))
            .filter_map(|pair| pair.trim().split_once('='));
        pairs.any(|(named, value)| named == name && self.cookie.is(value))
    }
}

/// The only header with this name.
fn only<'h>(headers: &'h HeaderMap, name: &str) -> Option<&'h str> {
    let mut all = headers.get_all(name).iter();
    let first = all.next()?;
    match all.next() {
        None => first.to_str().ok(),
        Some(_) => None,
    }
}

/// Whether, as far as the browser says, a page of this program made the request, or its user by hand.
fn is_by_own_page_or_person(headers: &HeaderMap) -> bool {
    let mut said = headers.get_all(SITE).iter();
    said.all(|site| site == "same-origin" || site == "none")
}

fn token_in(query: &str) -> Option<&str> {
    let mut pairs = query.split('&').filter_map(|pair| pair.split_once('='));
    pairs.find_map(|(name, value)| (name == "token").then_some(value))
}

impl Refusal {
    /// What is told to the person.
    pub(crate) fn sentence(self) -> &'static str {
        match self {
            Refusal::ForeignHost => {
                "This address is answered only by the name that memscope-ctl ui printed: copy the address from there."
            }
            Refusal::ForeignPage => {
                "Another page made this request. Only memscope's own page may ask: open the address that memscope-ctl ui printed."
            }
            Refusal::Token => {
                "This address was used before, or is not the one that was printed. Use the tab that is open, or start \
                 memscope-ctl ui anew: it prints a new address."
            }
            Refusal::NoCookie { .. } => {
                "This browser has not come with the address that memscope-ctl ui printed. Use the tab that is open, or start \
                 memscope-ctl ui anew: it prints a new address."
            }
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    const PORT: u16 = 4000;

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        let mut map = HeaderMap::new();
        for (name, value) in pairs {
            map.append(*name, HeaderValue::from_str(value).unwrap());
        }
        map
    }

    fn get(door: &Door, address: &str, pairs: &[(&'static str, &str)]) -> Entry {
        let mut all = vec![("host", "127.0.0.1:4000")];
        all.extend(pairs);
        door.judge(&Method::GET, &address.parse().unwrap(), &headers(&all))
    }

    fn used(door: &Door) -> String {
        let address = door.address();
        let (_, path) = address.split_once("4000").unwrap();
        match get(door, path, &[]) {
            Entry::Entered(cookie) => cookie,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_token_is_good_once() {
        let door = Door::new(PORT).unwrap();
        let address = door.address();
        let path = address.split_once("4000").unwrap().1.to_owned();
        let token = Entry::Refused(Refusal::Token);
        assert_eq!(get(&door, "/?token=", &[]), token);
        assert_eq!(get(&door, "/?token=00", &[]), token);
        let by_post = door.judge(
            &Method::POST,
            &path.parse().unwrap(),
            &headers(&[("host", "127.0.0.1:4000")]),
        );
        assert_eq!(by_post, token);
        let cookie = used(&door);
        for part in [
            "memscope-4000=",
            "; HttpOnly",
            "; SameSite=Strict",
            "; Path=/",
        ] {
            assert!(cookie.contains(part), "{cookie}");
        }
        assert!(!path.contains(&cookie["memscope-4000=".len()..80]));
        assert_eq!(get(&door, &path, &[]), token);
        assert_eq!(door.address().split_once("token=").unwrap().1, "");
        assert_eq!(get(&door, "/?token=", &[]), token);
    }

    #[test]
    fn the_cookie_is_what_lets_in() {
        let door = Door::new(PORT).unwrap();
        let none = Entry::Refused(Refusal::NoCookie { again: false });
        assert_eq!(get(&door, "/api/about", &[]), none);
        let cookie = used(&door);
        let pair = cookie.split(';').next().unwrap();
        let several = format!("a=b; {pair}; memscope-1=c");
        assert_eq!(get(&door, "/api/about", &[("cookie", pair)]), Entry::In);
        assert_eq!(get(&door, "/", &[("cookie", &several)]), Entry::In);
        let other_port = pair.replace("4000", "4001");
        let cut = &pair[..pair.len() - 1];
        for wrong in ["memscope-4000=", &other_port, cut, "memscope-4000"] {
            assert_eq!(get(&door, "/app.js", &[("cookie", wrong)]), none, "{wrong}");
        }
    }

    #[test]
    fn foreign_names_and_pages_get_nothing() {
        let door = Door::new(PORT).unwrap();
        let cookie = used(&door);
        let pair = cookie.split(';').next().unwrap();
        let ask = |pairs: &[(&'static str, &str)]| {
            let mut all = vec![("cookie", pair)];
            all.extend(pairs);
            door.judge(
                &Method::POST,
                &"/api/ask/List".parse().unwrap(),
                &headers(&all),
            )
        };
        for host in [
            "127.0.0.1:4000",
            "localhost:4000",
            "[::1]:4000",
            "LocalHost:4000",
        ] {
            assert_eq!(ask(&[("host", host)]), Entry::In, "{host}");
            let own = format!("http://{host}");
            assert_eq!(ask(&[("host", host), ("origin", &own)]), Entry::In);
        }
        let foreign = Entry::Refused(Refusal::ForeignHost);
        for host in [
            "127.0.0.1",
            "127.0.0.1:4001",
            "evil.example:4000",
            "127.0.0.1:4000.evil.example",
            "",
        ] {
            assert_eq!(ask(&[("host", host)]), foreign, "{host}");
        }
        assert_eq!(ask(&[]), foreign);
        let twice = [("host", "127.0.0.1:4000"), ("host", "evil.example:4000")];
        assert_eq!(ask(&twice), foreign);
        let page = Entry::Refused(Refusal::ForeignPage);
        for (scheme, host, port) in [
            ("http", "evil.example", PORT),
            ("https", "127.0.0.1", PORT),
            ("http", "127.0.0.1", PORT + 1),
            ("http", "localhost", PORT),
        ] {
            let origin = format!("{scheme}://{host}:{port}");
            let said = [("host", "127.0.0.1:4000"), ("origin", &origin)];
            assert_eq!(ask(&said), page, "{origin}");
        }
        let nobody = [("host", "127.0.0.1:4000"), ("origin", "null")];
        assert_eq!(ask(&nobody), page);
        for site in ["cross-site", "same-site"] {
            let said = [("host", "127.0.0.1:4000"), ("sec-fetch-site", site)];
            assert_eq!(ask(&said), page, "{site}");
        }
        let uri = format!("http://evil.example:{PORT}/api/about");
        let uri = uri.parse().unwrap();
        let said = headers(&[("host", "127.0.0.1:4000"), ("cookie", pair)]);
        assert_eq!(door.judge(&Method::GET, &uri, &said), foreign);
    }

    #[test]
    fn who_comes_by_a_link_tries_once_more() {
        let door = Door::new(PORT).unwrap();
        let again = |site: &'static str| get(&door, "/", &[("sec-fetch-site", site)]);
        let refused = |again| Entry::Refused(Refusal::NoCookie { again });
        assert_eq!(again("cross-site"), refused(true));
        assert_eq!(again("same-origin"), refused(false));
        assert_eq!(again("none"), refused(false));
    }
}
