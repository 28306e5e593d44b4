//! What an error of the client says about the request: not applied, or nobody knows.

use zookeeper_client::Error as ClientError;

use crate::error::printable;
use crate::registry::Fault;

/// What became of a single request.
pub(super) fn of(error: ClientError) -> Fault {
    match error {
        ClientError::NoNode => Fault::NoNode,
        ClientError::NodeExists => Fault::NodeExists,
        ClientError::BadVersion => Fault::BadVersion,
        ClientError::NotEmpty => Fault::NotEmpty,
        ClientError::NoAuth => Fault::NoAuth,
        ClientError::Unimplemented => Fault::Unsupported,
        // A session that moved away from under us, or whose right was taken away, is not to be used again.
        ClientError::SessionExpired
        | ClientError::SessionMoved
        | ClientError::AuthFailed
        | ClientError::ClientClosed => Fault::SessionLost,
        ClientError::NoChildrenForEphemerals
        | ClientError::InvalidAcl
        | ClientError::BadArguments(_)
        | ClientError::QuotaExceeded
        | ClientError::Throttled
        | ClientError::NotReadOnly
        | ClientError::ReconfigDisabled
        | ClientError::MarshallingError => Fault::Refused(text(&error)),
        // Most of a broken connection comes as `Custom`. What is not known to be harmless is not harmless.
        _ => Fault::Unknown(text(&error)),
    }
}

/// What became of a transaction, or of one step of it.
pub(super) fn of_multi(error: ClientError, creates: bool) -> Fault {
    match error {
        // 3.4 cannot read the kind of create that the client puts into a transaction.
        ClientError::MarshallingError if creates => Fault::Unsupported,
        other => of(other),
    }
}

/// The client's words.
pub(super) fn text(error: &ClientError) -> String {
    printable(&error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_is_certain_and_a_broken_connection_is_not() {
        assert_eq!(of(ClientError::BadVersion), Fault::BadVersion);
        assert!(matches!(of(ClientError::QuotaExceeded), Fault::Refused(_)));
        for error in [
            ClientError::ConnectionLoss,
            ClientError::Timeout,
            ClientError::UnexpectedErrorCode(-1),
            ClientError::UnexpectedError("x".into()),
        ] {
            assert!(matches!(of(error), Fault::Unknown(_)));
        }
    }

    #[test]
    fn a_create_in_a_transaction_is_what_the_old_servers_do_not_know() {
        assert_eq!(
            of_multi(ClientError::MarshallingError, true),
            Fault::Unsupported
        );
        assert!(matches!(
            of_multi(ClientError::MarshallingError, false),
            Fault::Refused(_)
        ));
    }
}
