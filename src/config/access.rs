//! Where a sidecar serves, and whom: from the text of the settings to their values. Pure.

use std::net::{Ipv4Addr, SocketAddr};

use super::roles::Roles;
use super::types::{Allowed, Listen, ListenAddress, UnixAddress, Who};

/// The longest path that fits into a Unix socket's address on Linux, in bytes.
const SOCKET_PATH_LIMIT: usize = 107;

/// Reads the addresses to serve on. Without TLS only this machine can be served.
pub(super) fn listen(text: &str) -> Result<Listen, String> {
    let (address, options) =
        text.split_once('?').map_or((text, None), |(address, options)| (address, Some(options)));
    let mut listen = Listen::from(listen_address(address)?);
    for option in options.iter().flat_map(|options| options.split('&')) {
        listen_option(&mut listen, option)?;
    }
    Ok(listen)
}

fn listen_address(text: &str) -> Result<ListenAddress, String> {
    const ALLOWED: &str = "allowed: a loopback IP address and port like `127.0.0.1:7070`, `localhost:7070`, `unix:/path`, or any address of this \
         machine with TLS like `https://10.0.0.7:7443`";
    if let Some(path) = text.strip_prefix("unix:") {
        let path = path.strip_prefix("//").unwrap_or(path);
        if !path.starts_with('/') {
            return Err(format!("the socket's path is not absolute; {ALLOWED}"));
        }
        if path.len() > SOCKET_PATH_LIMIT {
            return Err(format!(
                "the socket's path is longer than {SOCKET_PATH_LIMIT} bytes, the system's limit"
            ));
        }
        if path.contains('\0') || path.ends_with('/') {
            return Err(format!("the socket's path does not name a file; {ALLOWED}"));
        }
        return Ok(ListenAddress::Unix(path.into()));
    }
    let (authority, is_tls) = match text.strip_prefix("https://") {
        Some(authority) => (authority, true),
        None => (text.strip_prefix("http://").unwrap_or(text), false),
    };
    let authority = authority.strip_suffix('/').unwrap_or(authority);
    let numeric = match authority.strip_prefix("localhost:") {
        Some(port) => format!("{}:{port}", Ipv4Addr::LOCALHOST),
        None => authority.to_owned(),
    };
    let address: SocketAddr = numeric
        .parse()
        .map_err(|_| format!("it is neither an IP address with a port nor a socket; {ALLOWED}"))?;
    if is_tls {
        return Ok(ListenAddress::Tls(address));
    }
    if !address.ip().is_loopback() {
        return Err(format!("an address that other machines can reach needs TLS; {ALLOWED}"));
    }
    Ok(ListenAddress::Tcp(address))
}

/// Reads one of the options that follow an address.
fn listen_option(listen: &mut Listen, text: &str) -> Result<(), String> {
    const ALLOWED: &str = "allowed after an address: `?role=ROLES`, which are `attach`, `view` or `operate`, joined by `+`, and `?jobs=PATTERNS` of names; after \
                           a socket's path also `?mode=0660` and `?group=NAME`; several are joined by `&`";
    let (name, value) = text.split_once('=').unwrap_or((text, ""));
    if listen.rights.set(name, value, ALLOWED)? {
        return Ok(());
    }
    match &mut listen.address {
        ListenAddress::Unix(address) => socket_right(address, name, value, ALLOWED),
        ListenAddress::Tcp(_) | ListenAddress::Tls(_) => {
            Err(format!("`{text}` is no option of this address; {ALLOWED}"))
        }
    }
}

/// Reads one of the rights of a socket's file.
fn socket_right(address: &mut UnixAddress, name: &str, value: &str, allowed: &str) -> Result<(), String> {
    let octal = |mode: &str| {
        let mode =
            u32::from_str_radix(mode, 8).ok().filter(|_| mode.bytes().all(|byte| byte.is_ascii_digit()));
        mode.filter(|mode| *mode <= 0o777)
    };
    match name {
        "mode" => {
            let mode = octal(value).ok_or_else(|| format!("`{value}` is no mode of a file; {allowed}"))?;
            if mode & 0o200 == 0 {
                return Err(format!(
                    "with the mode {mode:04o} the sidecar's own user could not connect; {allowed}"
                ));
            }
            address.mode = mode;
        }
        "group" if !value.is_empty() => address.group = Some(value.to_owned()),
        _ => return Err(format!("`{name}={value}` is no option of a socket; {allowed}")),
    }
    Ok(())
}

/// Reads the users that are served.
pub(super) fn allow(text: &str) -> Result<Allowed, String> {
    let number =
        |text: &str| text.parse::<u32>().ok().filter(|_| text.bytes().all(|byte| byte.is_ascii_digit()));
    let mut words = text.split(':');
    let who = match words.next() {
        Some("same-user") if text == "same-user" => return Ok(Allowed::SAME_USER),
        Some("any-local-user") => Some(Who::AnyLocalUser),
        Some("uid") => words.next().and_then(number).map(Who::User),
        Some("gid") => words.next().and_then(number).map(Who::Group),
        _ => None,
    };
    let roles = words.next().map_or(Some(Roles::OF_OTHERS), Roles::parse);
    match (who, roles, words.next()) {
        (Some(who), Some(roles), None) => Ok(Allowed { who, roles }),
        _ => Err("allowed: `same-user`, `any-local-user`, `uid:N` and `gid:N` with the number of a user or a group; the last \
                  three with roles at the end, if they are not `attach+view`, like `uid:1000:operate`"
            .to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_tls_only_this_machine_can_be_served() {
        for good in ["127.0.0.1:7070", "127.8.9.10:0", "[::1]:7070"] {
            assert_eq!(listen(good), Ok(ListenAddress::Tcp(good.parse().unwrap()).into()));
        }
        for other_form in ["localhost:7070", "http://localhost:7070", "http://127.0.0.1:7070/"] {
            assert_eq!(listen(other_form), Ok(ListenAddress::Tcp("127.0.0.1:7070".parse().unwrap()).into()));
        }
        for good in ["unix:/run/sidekeeper.sock", "unix:///run/sidekeeper.sock"] {
            assert_eq!(listen(good), Ok(ListenAddress::Unix("/run/sidekeeper.sock".into()).into()));
        }
        let rights = |text: &str| match listen(text)?.address {
            ListenAddress::Unix(address) => Ok((address.mode, address.group)),
            ListenAddress::Tcp(_) | ListenAddress::Tls(_) => Err("no socket".to_owned()),
        };
        assert_eq!(rights("unix:/s"), Ok((0o600, None)));
        assert_eq!(rights("unix:///s?mode=0660&group=jobs"), Ok((0o660, Some("jobs".to_owned()))));
        assert_eq!(rights("unix:/s?group=1000"), Ok((0o600, Some("1000".to_owned()))));
        let roles = |text: &str| listen(text).map(|listen| listen.rights.roles.to_string());
        assert_eq!(roles("127.0.0.1:7070").as_deref(), Ok("attach+view+operate"));
        assert_eq!(roles("localhost:7070?role=view").as_deref(), Ok("view"));
        assert_eq!(roles("unix:/s?mode=0666&role=view+attach").as_deref(), Ok("attach+view"));
        let of_team = listen("unix:/s?role=attach&jobs=team-*+/team/*").unwrap().rights;
        for (name, is_in) in [("team-bill", true), ("/team/lock", true), ("bill", false), ("/lock", false)] {
            assert_eq!(of_team.names.include(name), is_in, "{name}");
        }
        assert_eq!(of_team.roles.to_string(), "attach");
        for remote in ["0.0.0.0:7070", "10.0.0.1:7070", "[::]:7070", "[::ffff:127.0.0.1]:7070", "[fe80::1]:1"]
        {
            let error = listen(remote).unwrap_err();
            assert!(error.contains("needs TLS"), "{error}");
        }
        for (good, address) in [
            ("https://10.0.0.1:7443", "10.0.0.1:7443"),
            ("https://[::]:7443/", "[::]:7443"),
            ("https://localhost:0", "127.0.0.1:0"),
        ] {
            assert_eq!(listen(good), Ok(ListenAddress::Tls(address.parse().unwrap()).into()));
        }
        assert_eq!(listen("https://10.0.0.1:7443?role=view").unwrap().rights.roles.to_string(), "view");
        let long = format!("unix:/{}", "x".repeat(107));
        for bad in [
            "",
            "7070",
            "localhost",
            "example.org:7070",
            "https://127.0.0.1",
            "https://example.org:7443",
            "https://10.0.0.1:7443?mode=0660",
            "127.0.0.1",
            "127.0.0.1:70700",
            "unix:s",
            "unix:/run/",
            "unix:/s?",
            "unix:/s?mode",
            "unix:/s?mode=",
            "unix:/s?mode=0999",
            "unix:/s?mode=01777",
            "unix:/s?mode=0060",
            "unix:/s?group=",
            "unix:/s?owner=jobs",
            "unix:/s?role=",
            "unix:/s?jobs=",
            "127.0.0.1:7070?role=admin",
            "127.0.0.1:7070?mode=0660",
            "127.0.0.1:7070?",
            &long,
        ] {
            assert!(listen(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn users_are_named_by_their_numbers() {
        assert_eq!(allow("same-user"), Ok(Allowed::SAME_USER));
        for (good, who, roles) in [
            ("any-local-user", Who::AnyLocalUser, Roles::OF_OTHERS),
            ("uid:1000", Who::User(1000), Roles::OF_OTHERS),
            ("gid:0", Who::Group(0), Roles::OF_OTHERS),
            ("uid:1000:operate", Who::User(1000), Roles::ALL),
            ("gid:7:attach+view", Who::Group(7), Roles::OF_OTHERS),
        ] {
            assert_eq!(allow(good), Ok(Allowed { who, roles }), "{good:?}");
        }
        for bad in [
            "",
            "root",
            "uid:",
            "uid:root",
            "uid:-1",
            "uid:+1",
            "uid:4294967296",
            "user:1",
            "uid:1 ",
            "1000",
            "same-user:view",
            "uid:1:",
            "uid:1:admin",
            "uid:1:view:view",
            "any-local-user:1:view",
        ] {
            assert!(allow(bad).unwrap_err().starts_with("allowed: "), "{bad:?}");
        }
    }
}
