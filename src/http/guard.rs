//! Which requests are answered? Those of probes and scrapers, not those of browsers. Pure.
//!
//! A browser sends requests for the pages of other sites. It says so in `Origin` or `Sec-Fetch-Site`, or it calls this machine by a name
//! that the page's owner has given it (DNS rebinding), which shows in `Host`.

use std::net::IpAddr;

use hyper::header::{ALLOW, CONTENT_TYPE, HOST, HeaderMap, HeaderValue, ORIGIN, UPGRADE};
use hyper::{Method, Request, Response, StatusCode};

/// The names by which clients may call this machine, besides addresses and `localhost`.
pub(super) struct Hosts {
    names: Vec<String>,
}

impl Hosts {
    pub(super) fn new(names: Vec<String>) -> Self {
        Self { names }
    }

    /// Whether a `Host` header is of a client that means this machine.
    fn has(&self, host: &str) -> bool {
        let name = without_port(host);
        name.parse::<IpAddr>().is_ok()
            || name.eq_ignore_ascii_case("localhost")
            || self.names.iter().any(|allowed| allowed.eq_ignore_ascii_case(name))
    }
}

/// The host of `host:port`; brackets of an IPv6 address are left out.
fn without_port(host: &str) -> &str {
    if let Some(rest) = host.strip_prefix('[') {
        return rest
            .split_once(']')
            .filter(|(_, port)| port.is_empty() || is_port(port))
            .map_or("", |(address, _)| address);
    }
    match host.rsplit_once(':') {
        Some((name, port)) if is_port(&format!(":{port}")) => name,
        Some(_) => "",
        None => host,
    }
}

fn is_port(text: &str) -> bool {
    text.strip_prefix(':').is_some_and(|port| port.parse::<u16>().is_ok())
}

/// Why a request is not answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Refusal {
    /// The method changes something, or needs a body.
    Method,
    /// The request is not for this machine.
    Host,
    /// A page of somebody else has made it.
    Browser,
    /// The form of the request is one for proxies, or asks for another protocol.
    Form,
}

impl Refusal {
    fn status(self) -> StatusCode {
        match self {
            Self::Method => StatusCode::METHOD_NOT_ALLOWED,
            Self::Host | Self::Form => StatusCode::BAD_REQUEST,
            Self::Browser => StatusCode::FORBIDDEN,
        }
    }

    fn text(self) -> &'static str {
        match self {
            Self::Method => "only GET and HEAD, without a body\n",
            Self::Host => "the Host is neither an address, nor localhost, nor in http_hosts\n",
            Self::Browser => "a request of another site's page is not answered\n",
            Self::Form => "only plain requests of HTTP/1, with a path\n",
        }
    }

    pub(super) fn into_response(self) -> Response<String> {
        let mut response = Response::new(self.text().to_owned());
        *response.status_mut() = self.status();
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
        if self == Self::Method {
            response.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
        }
        response
    }
}

/// Whether a request is answered.
pub(super) fn check<B: hyper::body::Body>(request: &Request<B>, hosts: &Hosts) -> Result<(), Refusal> {
    if !matches!(*request.method(), Method::GET | Method::HEAD) || !request.body().is_end_stream() {
        return Err(Refusal::Method);
    }
    if request.uri().authority().is_some() || request.headers().contains_key(UPGRADE) {
        return Err(Refusal::Form);
    }
    let mut given = request.headers().get_all(HOST).iter();
    let host = given.next().and_then(|host| host.to_str().ok());
    if given.next().is_some() || !host.is_some_and(|host| hosts.has(host)) {
        return Err(Refusal::Host);
    }
    if is_of_a_page(request.headers()) {
        return Err(Refusal::Browser);
    }
    Ok(())
}

/// Whether the page of a site made the request, and not the address line of a browser.
fn is_of_a_page(headers: &HeaderMap) -> bool {
    let site = headers.get("sec-fetch-site");
    headers.contains_key(ORIGIN) || site.is_some_and(|site| site != "none" && site != "same-origin")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check_one(method: &str, uri: &str, headers: &[(&'static str, &str)]) -> Result<(), Refusal> {
        let mut request = Request::builder().method(method).uri(uri);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        check(&request.body(String::new()).unwrap(), &Hosts::new(vec!["node7.example.org".to_owned()]))
    }

    #[test]
    fn op_11_only_clients_that_mean_this_machine_are_answered() {
        for host in [
            "127.0.0.1",
            "127.0.0.1:9464",
            "[::1]:9464",
            "[::1]",
            "10.1.2.3",
            "localhost:1",
            "LOCALHOST",
            "Node7.example.org:9464",
        ] {
            assert_eq!(check_one("GET", "/metrics", &[("host", host)]), Ok(()), "{host}");
        }
        for host in [
            "",
            "evil.example.org",
            "node7.example.org.evil",
            "localhost.evil:9464",
            "127.0.0.1:9464:1",
            "[::1",
            "[::1]x",
            ":9464",
            "127.0.0.1:70000",
            "a@127.0.0.1",
        ] {
            assert_eq!(check_one("GET", "/metrics", &[("host", host)]), Err(Refusal::Host), "{host}");
        }
        assert_eq!(check_one("GET", "/metrics", &[]), Err(Refusal::Host));
        let two = [("host", "localhost"), ("host", "localhost")];
        assert_eq!(check_one("GET", "/metrics", &two), Err(Refusal::Host));
    }

    #[test]
    fn op_11_a_browser_of_another_site_is_refused() {
        let host = ("host", "localhost:9464");
        assert_eq!(check_one("HEAD", "/metrics", &[host, ("sec-fetch-site", "none")]), Ok(()));
        for (name, value) in [
            ("origin", "http://localhost:9464"),
            ("origin", "null"),
            ("sec-fetch-site", "cross-site"),
            ("sec-fetch-site", "same-site"),
        ] {
            assert_eq!(
                check_one("GET", "/metrics", &[host, (name, value)]),
                Err(Refusal::Browser),
                "{name}: {value}"
            );
        }
        for method in ["POST", "PUT", "DELETE", "OPTIONS", "CONNECT", "TRACE"] {
            assert_eq!(check_one(method, "/metrics", &[host]), Err(Refusal::Method), "{method}");
        }
        assert_eq!(check_one("GET", "http://localhost:9464/metrics", &[host]), Err(Refusal::Form));
        assert_eq!(check_one("GET", "/metrics", &[host, ("upgrade", "h2c")]), Err(Refusal::Form));
        let with_body =
            Request::builder().uri("/metrics").header("host", "localhost").body("body".to_owned());
        assert_eq!(check(&with_body.unwrap(), &Hosts::new(Vec::new())), Err(Refusal::Method));
    }
}
