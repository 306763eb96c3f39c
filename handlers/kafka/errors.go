package kafka

import (
	"crypto/tls"
	"errors"
	"net"
	"slices"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/handlers/internal/oneline"
	"github.com/notifyd/notifyd/internal/exhaust"
)

// errUndecided is the failure of records that were given up: they may be written or not.
var errUndecided = errors.New("given up before it was acknowledged")

// contentError says that no record can be made of an event.
type contentError struct{ error }

func (e *contentError) Unwrap() error { return e.error }

// isUndecided reports whether a record was given up.
func isUndecided(err error) bool {
	return errors.Is(err, errUndecided) || errors.Is(err, kgo.ErrAborting)
}

// isContent reports whether an error is about the content of a record. The broker
// returns it for all records of a partition in a request.
func isContent(err error) bool {
	return is[*contentError](err) || anyOf(err, kerr.MessageTooLarge, kerr.RecordListTooLarge, kerr.InvalidRecord, kerr.PolicyViolation)
}

// isTopic reports whether an error is about the topic alone.
func isTopic(err error) bool {
	return anyOf(err, kerr.UnknownTopicOrPartition, kerr.UnknownTopicID, kerr.TopicAuthorizationFailed, kerr.InvalidTopicException)
}

// isFatal reports whether the client is useless after an error: it may have lost
// its producer id or its place in a sequence, been fenced or closed, or hold on to
// a topic that was deleted and made again. In doubt an error is fatal: another
// client costs a connection, a stuck one costs everything.
func isFatal(err error) bool {
	switch {
	case err == nil, isContent(err), isUndecided(err):
		return false
	case errors.Is(err, kerr.UnknownTopicID):
		return true
	default:
		return !isTopic(err) && !kerr.IsRetriable(err)
	}
}

// classify marks err with the party at fault. Nothing else decides that. ownTopic
// says that the topic is made of the event: a missing topic is then this event's
// fault alone.
func classify(err error, ownTopic bool) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, kerr.PolicyViolation):
		// A broker with rules of its own. They may be about this record, so it is
		// tried again, and does not hold up the others.
		return err
	case isContent(err):
		return delivery.Permanent(err)
	case isTopic(err) && ownTopic:
		return err
	case isLogin(err):
		return delivery.Unauthorized(err)
	default:
		return delivery.Unavailable(err)
	}
}

// isLogin reports whether a broker has refused the credentials.
func isLogin(err error) bool { return errors.Is(err, kerr.SaslAuthenticationFailed) }

// describe returns the failure and its cure.
func (h *Handler) describe(err error) error {
	text := err.Error()
	if errors.Is(err, kerr.UnknownTopicOrPartition) || errors.Is(err, kerr.TopicAuthorizationFailed) {
		// The topic may come out of a payload, which does not belong into logs.
		if name := h.encoder.fixedTopic; name != "" {
			text = "topic " + name + ": " + text
		}
	}
	return &oneline.Error{Text: "kafka: " + h.secrets.clean(text) + cure(err), Cause: harmless(err)}
}

// harmless returns the part of an error's chain that is known to hold no secret.
func harmless(err error) error {
	var code *kerr.Error
	var content *contentError
	var network *net.OpError
	var cert *tls.CertificateVerificationError
	switch {
	case errors.As(err, &content):
		return content
	case errors.As(err, &code):
		return code
	case errors.As(err, &cert):
		return cert
	case errors.As(err, &network):
		return network
	case errors.Is(err, errBehind):
		return errBehind
	default:
		return exhaust.Cause(err)
	}
}

// cure returns what an operator can do, or "".
func cure(err error) string {
	if e, ok := errors.AsType[*registryError](err); ok {
		return e.cure()
	}
	switch {
	case is[*refusal](err):
		return " (register the schema, or correct subject and version of schema_registry, and replay the event)"
	case anyOf(err, kerr.SaslAuthenticationFailed, kerr.UnsupportedSaslMechanism, kerr.IllegalSaslState):
		return " (check sasl: mechanism, username, password or token)"
	case is[*tls.CertificateVerificationError](err):
		return " (check tls.server_name, or name the authority's certificate with tls.ca_file)"
	case is[tls.RecordHeaderError](err):
		return " (the port does not speak TLS: check brokers, or take tls out)"
	case errors.Is(err, kerr.UnknownTopicOrPartition):
		return " (create the topic, or set allow_auto_topic_creation: true where brokers do so)"
	case errors.Is(err, kerr.TopicAuthorizationFailed):
		return " (allow WRITE and DESCRIBE on the topic)"
	case errors.Is(err, kerr.TransactionalIDAuthorizationFailed):
		return " (allow WRITE and DESCRIBE on transactional ids with the prefix of transactional_id)"
	case errors.Is(err, kerr.ClusterAuthorizationFailed):
		return " (allow IDEMPOTENT_WRITE on the cluster, or WRITE on the topic)"
	case anyOf(err, kerr.MessageTooLarge, kerr.RecordListTooLarge):
		return " (raise the topic's max.message.bytes)"
	case anyOf(err, kerr.NotEnoughReplicas, kerr.NotEnoughReplicasAfterAppend):
		return " (brokers are missing: the topic has fewer replicas in sync than its min.insync.replicas)"
	default:
		return ""
	}
}

func anyOf(err error, codes ...*kerr.Error) bool {
	return slices.ContainsFunc(codes, func(code *kerr.Error) bool { return errors.Is(err, code) })
}

func is[E error](err error) bool {
	_, ok := errors.AsType[E](err)
	return ok
}
