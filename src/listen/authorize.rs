//! Refuses calls whose caller lacks the role that the method needs. A tower layer around all services, inside those that
//! find out who calls. A method that the table does not have is not served: a new one is closed until somebody decides.

use std::task::{Context, Poll};

use futures::future::{BoxFuture, FutureExt as _};
use tonic::Status;
use tonic::codegen::http::{Request, Response};
use tower::{Layer, Service};

use super::caller::Caller;
use super::refusal::refusal;
use crate::config::Role;
use crate::reason::Reason;

/// What a method needs of its caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Need {
    /// Nothing: everybody may call it.
    Nothing,
    /// One of these roles. If the request names a job, a lock or an election, its service checks the name.
    OneOf(&'static [Role]),
    /// One of these roles, and every name that any caller may use: the call concerns all jobs and locks.
    OneOfForAll(&'static [Role]),
}

/// What a method needs, by its path. `None`: there is no such method.
pub(crate) type Needs = fn(&str) -> Option<Need>;

/// The layer.
#[derive(Debug, Clone, Copy)]
pub struct Authorize {
    needs: Needs,
}

impl Authorize {
    /// Decides by this table.
    pub(crate) fn new(needs: Needs) -> Self {
        Self { needs }
    }
}

impl<S> Layer<S> for Authorize {
    type Service = Authorized<S>;

    fn layer(&self, inner: S) -> Authorized<S> {
        Authorized { inner, needs: self.needs }
    }
}

/// A service whose callers need roles.
#[derive(Debug, Clone)]
pub struct Authorized<S> {
    inner: S,
    needs: Needs,
}

impl<S, B, R> Service<Request<B>> for Authorized<S>
where
    S: Service<Request<B>, Response = Response<R>>,
    S::Future: Send + 'static,
    S::Error: Send + 'static,
    R: Default + Send + 'static,
{
    type Response = Response<R>;
    type Error = S::Error;
    type Future = BoxFuture<'static, Result<Response<R>, S::Error>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let path = request.uri().path();
        match decide(path, (self.needs)(path), &Caller::of(request.extensions())) {
            Some(status) => futures::future::ready(Ok(status.into_http())).boxed(),
            None => self.inner.call(request).boxed(),
        }
    }
}

/// Why the call is refused. `None`: it is accepted.
fn decide(path: &str, need: Option<Need>, caller: &Caller) -> Option<Status> {
    let (roles, for_all) = match need {
        None => return Some(Status::unimplemented("this sidecar has no such method")),
        Some(Need::Nothing) => return None,
        Some(Need::OneOf(roles)) => (roles, false),
        Some(Need::OneOfForAll(roles)) => (roles, true),
    };
    let method = path.rsplit('/').next().unwrap_or(path);
    if roles.iter().any(|role| caller.has(*role)) {
        return (for_all && !caller.may_use_all()).then(|| {
            refusal(
                Reason::NameNotAllowed,
                format!(
                    "{caller} may not call {method}, which concerns all jobs and locks, while `jobs=` of its \
                     address (`listen`), its certificate (`tls_allow`) or its token (`token_file`) leaves it some names only"
                ),
            )
        });
    }
    let needed = roles.iter().map(ToString::to_string).collect::<Vec<_>>().join("` or `");
    Some(refusal(
        Reason::RoleMissing,
        format!(
            "{caller} may not call {method}, which needs the role `{needed}`; its roles here: {}. Each of these settings of \
             the sidecar limits them: `allow` for the user, `tls_allow` for the certificate, `role=` of `listen` for the address, \
             `token_file` for the token",
            caller.roles()
        ),
    ))
}

#[cfg(test)]
mod tests {
    use tonic::Code;

    use super::super::caller::CallerName;
    use super::*;
    use crate::config::{Names, Rights, Roles};

    #[test]
    fn a_call_needs_one_of_the_roles_of_its_method() {
        let caller = |roles: &str| Caller::new(CallerName::User(7), Roles::parse(roles).unwrap().into());
        let need = Some(Need::OneOf(&[Role::Attach, Role::View]));
        for roles in ["attach", "view", "operate"] {
            assert!(decide("/a.B/C", need, &caller(roles)).is_none(), "{roles}");
        }
        let refused = decide("/a.B/C", Some(Need::OneOf(&[Role::Operate])), &caller("attach+view")).unwrap();
        assert_eq!(refused.code(), Code::PermissionDenied);
        for part in ["uid 7", "C, which needs the role `operate`", "roles here: attach+view"] {
            assert!(refused.message().contains(part), "{}", refused.message());
        }
    }

    #[test]
    fn se_13_a_call_that_concerns_all_jobs_needs_all_names() {
        let need = Some(Need::OneOfForAll(&[Role::Operate]));
        let caller = |names: &str| {
            let names = Names::parse(names).unwrap();
            Caller::new(CallerName::User(7), Rights { roles: Roles::ALL, names })
                .within(&Names::parse("b*").unwrap())
        };
        assert!(decide("/a.B/C", need, &caller("*")).is_none(), "no caller may use more");
        assert!(caller("*").may_use("bill") && !caller("*").may_use("all"));
        let refused = decide("/a.B/C", need, &caller("a*")).unwrap();
        assert_eq!(refused.code(), Code::PermissionDenied);
        assert!(refused.message().contains("C, which concerns all jobs"), "{}", refused.message());
        assert!(decide("/a.B/C", Some(Need::OneOf(&[Role::Operate])), &caller("a*")).is_none());
    }

    #[test]
    fn se_4_a_method_without_a_decision_is_closed_and_so_is_a_request_without_a_caller() {
        let operator = Caller::new(CallerName::User(0), Rights::ALL);
        assert_eq!(decide("/a.B/New", None, &operator).unwrap().code(), Code::Unimplemented);
        let nobody = Caller::of(&tonic::codegen::http::Extensions::new());
        for role in [Role::Attach, Role::View, Role::Operate] {
            let needs: &'static [Role] = match role {
                Role::Attach => &[Role::Attach],
                Role::View => &[Role::View],
                Role::Operate => &[Role::Operate],
            };
            assert!(decide("/a.B/C", Some(Need::OneOf(needs)), &nobody).is_some(), "{role}");
        }
        assert!(decide("/a.B/C", Some(Need::Nothing), &nobody).is_none());
    }
}
