package redis

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"syscall"

	goredis "github.com/redis/go-redis/v9"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/handlers/internal/oneline"
	"github.com/notifyd/notifyd/internal/exhaust"
	"github.com/notifyd/notifyd/internal/secret"
)

var (
	// errReplicas says that only the primary has the events.
	errReplicas = errors.New("not enough replicas have it")
	// errReplica says that messages would reach the subscribers of a replica alone.
	errReplica = errors.New("the server is a replica")
	// errEvicts says that entries get lost without an error.
	errEvicts = errors.New("the server evicts keys when its memory is full, the stream with them")
	// errConfused says that an answer does not fit its command.
	errConfused = errors.New("the server gave an answer that does not fit the question")
)

// isReply reports whether Redis itself has answered with an error.
func isReply(err error) bool {
	var reply goredis.Error
	return errors.As(err, &reply)
}

func isContent(err error) bool {
	var content *contentError
	return errors.As(err, &content)
}

// code returns the word that an error of Redis begins with, "" for any other
// error. It is what Redis has for a code; "ERR" stands for a lot of things.
func code(err error) string {
	var reply goredis.Error
	if !errors.As(err, &reply) {
		return ""
	}
	word, _, _ := strings.Cut(reply.Error(), " ")
	return word
}

// scope is the possible subject of an error.
type scope struct {
	// own: the key or channel was made of the event, so that a fault of it is
	// this event's alone.
	own bool
	// alone: no other event was sent that could be meant.
	alone bool
}

// classify marks err with the party at fault. Nothing else decides that.
func classify(err error, at scope) error {
	own, alone := at.own, at.alone
	switch {
	case err == nil:
		return nil
	case isContent(err):
		return delivery.Permanent(err)
	case errors.Is(err, errNoSubscribers) && own:
		return err
	}
	switch code(err) {
	case "WRONGPASS":
		return delivery.Unauthorized(err)
	case "WRONGTYPE", "CROSSSLOT":
		if own {
			return err
		}
	case "NOPERM":
		// The same code says that the user may not run a command, which no event
		// can cure. Of keys and channels it says "access".
		if own && strings.Contains(err.Error(), "access") {
			return err
		}
	case "ERR":
		if isTooLarge(err) && alone {
			return delivery.Permanent(err)
		}
		if own && strings.Contains(err.Error(), "exhausted the last possible ID") {
			return err
		}
	}
	return delivery.Unavailable(err)
}

// isTooLarge reports whether Redis finds an argument too long, for which it has
// no code of its own. The first text is that of proto-max-bulk-len, where the
// server closes the connection behind it; the second one that of XADD.
func isTooLarge(err error) bool {
	return strings.Contains(err.Error(), "Protocol error: invalid bulk length") ||
		strings.Contains(err.Error(), "Elements are too large to be stored")
}

// answer returns the error of DeliverBatch for a failure.
func (h *Handler) answer(ctx context.Context, err error, events int) error {
	decided := isReply(err) || isContent(err) || errors.Is(err, errReplicas) || errors.Is(err, errNoSubscribers) || errors.Is(err, errReplica)
	if ctx.Err() != nil && !decided {
		return fmt.Errorf("redis: %w", context.Cause(ctx))
	}
	// The class comes from the error of Redis, whose text is then cleaned.
	class := classify(err, scope{own: h.encoder.fixed == "", alone: events == 1})
	clean := h.describe(err)
	switch {
	case delivery.IsPermanent(class):
		return delivery.Permanent(clean)
	case delivery.IsUnauthorized(class):
		return delivery.Unauthorized(clean)
	case delivery.IsUnavailable(class):
		return delivery.Unavailable(clean)
	default:
		return clean
	}
}

// describe returns the failure and its cure.
func (h *Handler) describe(err error) error {
	text := err.Error()
	// Redis repeats the arguments of a command that it does not know: a payload, perhaps.
	text, _, cut := strings.Cut(text, ", with args beginning with:")
	if code(err) != "" && h.encoder.fixed != "" {
		// A name made of a payload does not belong into logs.
		text = h.encoder.what + " " + h.encoder.fixed + ": " + text
	}
	clean := secret.NewRedactor(h.at.password.Reveal(), h.cfg.SentinelPassword.Reveal()).Redact(text)
	f := &oneline.Error{Text: "redis: " + oneline.Of(clean, oneline.MaxReply) + h.cure(err)}
	if !cut && clean == text {
		f.Cause = harmless(err)
	}
	return f
}

// harmless returns the part of an error's chain that is known to hold no secret.
func harmless(err error) error {
	var content *contentError
	var reply goredis.Error
	var network *net.OpError
	var cert *tls.CertificateVerificationError
	switch {
	case errors.As(err, &content):
		return content
	case errors.As(err, &reply):
		return reply
	case errors.As(err, &cert):
		return cert
	case errors.As(err, &network):
		return network
	case errors.Is(err, errReplicas), errors.Is(err, errNoSubscribers), errors.Is(err, errReplica), errors.Is(err, errEvicts):
		return err
	default:
		return exhaust.Cause(err)
	}
}

// cure returns what an operator can do, or "".
func (h *Handler) cure(err error) string {
	if isTooLarge(err) {
		return " (set max_message_bytes to the server's proto-max-bulk-len, or raise that)"
	}
	if c := code(err); c != "" {
		return h.replyCure(c, err)
	}
	var timeout net.Error
	var network *net.OpError
	var record tls.RecordHeaderError
	var cert *tls.CertificateVerificationError
	isWrite := errors.As(err, &network) && network.Op == "write"
	switch {
	case errors.As(err, &cert):
		return " (check tls.server_name, or name the authority's certificate with tls.ca_file)"
	case errors.As(err, &record):
		return " (the port does not speak TLS: check the port, or take tls out)"
	case errors.Is(err, errReplicas):
		return " (the primary has the event, so it will come again; check the replicas, or raise wait_timeout)"
	case errors.Is(err, errReplica):
		return " (its subscribers alone would hear a message: name the primary, or use sentinel_master)"
	case errors.Is(err, errEvicts):
		return " (set maxmemory-policy noeviction, or take a server of its own)"
	case errors.Is(err, io.EOF), errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE):
		return " (the server has closed the connection; it does so when it stops, and when it has more than maxclients)"
	case errors.Is(err, errConnectTimeout), !errors.As(err, &timeout) || !timeout.Timeout():
		return ""
	case isWrite:
		return fmt.Sprintf(" (not sent within write_timeout of %v)", h.cfg.WriteTimeout)
	default:
		return fmt.Sprintf(" (no answer within read_timeout of %v; it may have been taken all the same)", h.cfg.ReadTimeout+h.cfg.waitTimeout())
	}
}

// replyCure is cure for the codes of Redis.
func (h *Handler) replyCure(code string, err error) string {
	switch code {
	case "ERR":
		// The answer to a client that sends a lot without authentication.
		if strings.Contains(err.Error(), "unauthenticated") {
			return " (set password)"
		}
		if strings.Contains(err.Error(), "max number of clients") {
			return " (raise maxclients of the server)"
		}
		if strings.Contains(err.Error(), "user executing the script") {
			return h.rights()
		}
		return ""
	case "WRONGTYPE":
		return " (the key holds something other than a stream: rename one of them)"
	case "OOM":
		return " (the server is full: raise maxmemory, or keep less with max_len)"
	case "MISCONF":
		return " (the server cannot write to its disk)"
	case "READONLY":
		return " (that is a replica: name the primary, or use sentinel_master)"
	case "NOREPLICAS":
		return " (replicas are missing: see min-replicas-to-write)"
	case "NOAUTH":
		return " (set password)"
	case "WRONGPASS":
		return " (check username and password)"
	case "CROSSSLOT":
		return " (the ids for deduplicate must be in the slot of the stream: give it a name without braces, or with a hash tag)"
	case "NOPERM":
		return h.rights()
	case "MOVED", "ASK":
		return " (it is a cluster: set cluster: true; else it is moving the key)"
	case "CLUSTERDOWN":
		return " (nodes of the cluster are missing)"
	default:
		return ""
	}
}

// rights is the cure for a user who may not do what a delivery does.
func (h *Handler) rights() string {
	if h.encoder.script != nil {
		return " (allow it: ACL SETUSER name " + scriptRights + " +wait)"
	}
	return " (allow it: ACL SETUSER name ~key +xadd +multi +exec +wait, or &channel +publish)"
}
