package kafka

import (
	"cmp"
	"errors"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/notifyd/notifyd/handlers/internal/outcome"
)

// errUndecided is the failure of records that were given up: they may be written or not.
var errUndecided = errors.New("given up before it was acknowledged")

// errNoTransactions is the failure of a cluster whose brokers do not know the requests of transactions. It is found before
// anything is written: see producer.ready.
var errNoTransactions = errors.New("the cluster has no transactions")

// isUndecided reports whether a record was given up.
func isUndecided(err error) bool {
	return errors.Is(err, errUndecided) || errors.Is(err, kgo.ErrAborting)
}

// eventError is the refusal of a name or a number that a template made of an event. It concerns this event, or every event: a
// wrong deploy gets the same answer. Its class is one of the unclear classes.
type eventError struct {
	error
	class outcome.Class
	cure  string
}

// Unwrap returns the refusal.
func (e *eventError) Unwrap() error { return e.error }

// codes is the table of the brokers' codes. Own is for a topic made of the event. A code that is not in it is a fault of
// the cluster.
func codes() outcome.Table[error] {
	return outcome.Table[error]{
		// A broker with custom policies. The policy may be about this record only, so the record is tried again,
		// and does not hold up the others. Event Hubs refuses every record so while its throughput is exceeded.
		{Codes: []error{kerr.PolicyViolation}, Class: outcome.UnclearRetry, Cure: "check the rules and the quotas of the cluster"},
		{
			Codes: []error{kerr.MessageTooLarge, kerr.RecordListTooLarge},
			Class: outcome.Permanent,
			Cure:  "raise the topic's max.message.bytes",
		},
		// Every record without a key, where a compacted topic has been configured by mistake.
		{Codes: []error{kerr.InvalidRecord}, Class: outcome.Unclear, Cure: "check the key, and what the topic requires of a record"},

		{
			Codes: []error{kerr.SaslAuthenticationFailed},
			Class: outcome.Unauthorized,
			Cure:  "check sasl: mechanism, username, password or token",
		},
		{
			Codes: []error{kerr.UnsupportedSaslMechanism, kerr.IllegalSaslState},
			Class: outcome.Unavailable,
			Cure:  "check sasl: mechanism, username, password or token",
		},

		{
			Codes: []error{kerr.UnknownTopicOrPartition},
			Class: outcome.Unavailable,
			Own:   outcome.UnclearRetry,
			Cure:  "create the topic, or set allow_auto_topic_creation: true where brokers do so",
		},
		{
			Codes: []error{kerr.TopicAuthorizationFailed},
			Class: outcome.Unavailable,
			Own:   outcome.UnclearRetry,
			Cure:  "allow WRITE and DESCRIBE on the topic",
		},
		{Codes: []error{kerr.UnknownTopicID, kerr.InvalidTopicException}, Class: outcome.Unavailable, Own: outcome.UnclearRetry},

		{
			Codes: []error{kerr.TransactionalIDAuthorizationFailed},
			Class: outcome.Unavailable,
			Cure:  "allow WRITE and DESCRIBE on transactional ids with the prefix of transactional_id",
		},
		{
			Codes: []error{kerr.ClusterAuthorizationFailed},
			Class: outcome.Unavailable,
			Cure:  "allow IDEMPOTENT_WRITE on the cluster, or WRITE on the topic",
		},

		{ // Event Hubs and other clusters with a part of the protocol
			Codes: []error{kerr.UnsupportedCompressionType, kerr.UnsupportedForMessageFormat}, Class: outcome.Unavailable,
			Cure: "the cluster does not take this compression: set compression: gzip or none",
		},
		{
			Codes: []error{kerr.UnsupportedVersion, errNoTransactions}, Class: outcome.Unavailable,
			Cure: "use a cluster, or a tier of Event Hubs, that has the feature, or take transactional and exactly_once out",
		},
		{
			Codes: []error{kerr.NotEnoughReplicas, kerr.NotEnoughReplicasAfterAppend}, Class: outcome.Unavailable,
			Cure: "brokers are missing: the topic has fewer replicas in sync than its min.insync.replicas",
		},
	}
}

// isContent reports whether an error is about the content of a record. The broker
// returns it for all records of a partition in a request.
func isContent(err error) bool {
	if err == nil {
		return false
	}
	if is[*eventError](err) {
		return true
	}
	class, _ := outcome.Match(codes(), false, err)
	return class == outcome.Permanent || class == outcome.Unclear || class == outcome.UnclearRetry
}

// isTopic reports whether an error is about the topic alone.
func isTopic(err error) bool {
	if err == nil {
		return false
	}
	class, _ := outcome.Match(codes(), false, err)
	own, _ := outcome.Match(codes(), true, err)
	return class != own
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

// lookUp returns the party at fault and the cure. own reports that the topic is made of the event: a missing topic is
// then this event's fault alone.
func lookUp(err error, own bool) (class outcome.Class, cure string) {
	if e, ok := errors.AsType[*eventError](err); ok {
		return e.class, e.cure
	}
	if e, ok := errors.AsType[*registryError](err); ok {
		return e.lookUp()
	}
	if is[*partitionError](err) {
		return outcome.Unavailable, noPartition
	}
	if is[*advertisedError](err) {
		return outcome.Unavailable, checkAdvertised
	}

	class, cure = outcome.Match(codes(), own, err)
	return cmp.Or(class, outcome.Unavailable), cure
}

// answer returns the error of a delivery, or of a check, for a failure.
func (h *Handler) answer(err error, own bool) error {
	class, _ := lookUp(err, own)
	return class.Mark(0, h.describe(err))
}

// describe returns the failure and its cure.
func (h *Handler) describe(err error) error {
	f := outcome.Failure{Err: err, Text: err.Error()}
	_, f.Cure = lookUp(err, false)
	if errors.Is(err, kerr.UnknownTopicOrPartition) || errors.Is(err, kerr.TopicAuthorizationFailed) {
		// The topic may come out of a payload, which does not belong into logs.
		if name := h.encoder.fixedTopic; name != "" {
			f.Text = "topic " + name + ": " + f.Text
		}
	}
	if code, ok := errors.AsType[*kerr.Error](err); ok {
		f.Code = code
	}
	return h.out.Line(f)
}

// destination describes failures.
func destination(s *secrets) *outcome.Destination {
	d := outcome.New("kafka", "check brokers, or take tls out")
	d.Secrets = s
	d.Safe = []error{errBehind}
	return d
}

func is[E error](err error) bool {
	_, ok := errors.AsType[E](err)
	return ok
}
