package redis

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"syscall"

	goredis "github.com/redis/go-redis/v9"

	"github.com/notifyd/notifyd/handlers/internal/outcome"
)

var (
	// errReplicas: only the primary has the events.
	errReplicas = errors.New("not enough replicas have it")
	// errReplica: messages would reach only the subscribers of a replica.
	errReplica = errors.New("the server is a replica")
	// errEvicts: the server would lose entries without an error.
	errEvicts = errors.New("the server evicts keys when its memory is full, the stream with them")
	// errConfused: an answer does not fit its command.
	errConfused = errors.New("the server gave an answer that does not fit the question")
)

// isReply reports whether Redis itself has answered with an error.
func isReply(err error) bool {
	var reply goredis.Error
	return errors.As(err, &reply)
}

// code returns the first word of an error of Redis, which serves as its
// code, or "" for any other error. "ERR" stands for many errors.
func code(err error) string {
	var reply goredis.Error
	if !errors.As(err, &reply) {
		return ""
	}
	word, _, _ := strings.Cut(reply.Error(), " ")
	return word
}

// Redis uses the code ERR for many errors, and NOPERM for every missing right. These values stand for the texts
// behind them.
const (
	tooLarge       = "ERR too large"
	tooManyClients = "ERR clients"
	exhausted      = "ERR exhausted"
	noAccess       = "NOPERM access"
)

// meaning returns the code of an error, or the value that stands for its
// text.
func meaning(err error) string {
	c := code(err)
	if c != "ERR" && c != "NOPERM" {
		return c
	}

	text := err.Error()
	has := func(part string) bool { return strings.Contains(text, part) }

	switch {
	case c == "NOPERM" || has("user executing the script"):
		if has("access") { // to a key or channel; otherwise it is a command
			return noAccess
		}
		return "NOPERM"
	case has("Protocol error: invalid bulk length"), has("Elements are too large to be stored"):
		// Of proto-max-bulk-len, where the server closes the connection behind it, and of XADD.
		return tooLarge
	case has("unauthenticated"): // the answer to a client that sends a lot without authentication
		return "NOAUTH"
	case has("max number of clients"):
		return tooManyClients
	case has("exhausted the last possible ID"):
		return exhausted
	default:
		return c
	}
}

// codes is the table of the codes of Redis. Own is for a key or channel made of the event: the template, or the rights of
// the user, may be wrong for every event. A code that is not in it is a fault of the server.
func (h *Handler) codes() outcome.Table[string] {
	rights := "allow it: ACL SETUSER name ~key +xadd +multi +exec +wait, or &channel +publish"
	if h.encoder.script != nil {
		rights = "allow it: ACL SETUSER name " + scriptRights + " +wait"
	}

	return outcome.Table[string]{
		{
			Codes: []string{tooLarge},
			Class: outcome.Permanent,
			Cure:  "set max_message_bytes to the server's proto-max-bulk-len, or raise that",
		},
		{Codes: []string{tooManyClients}, Class: outcome.Unavailable, Cure: "raise maxclients of the server"},
		{Codes: []string{exhausted}, Class: outcome.Unavailable, Own: outcome.UnclearRetry},
		{Codes: []string{"NOPERM"}, Class: outcome.Unavailable, Cure: rights},
		{Codes: []string{noAccess}, Class: outcome.Unavailable, Own: outcome.UnclearRetry, Cure: rights},
		{
			Codes: []string{"WRONGTYPE"},
			Class: outcome.Unavailable,
			Own:   outcome.UnclearRetry,
			Cure:  "the key holds something other than a stream: rename one of them",
		},
		{
			Codes: []string{"CROSSSLOT"}, Class: outcome.Unavailable, Own: outcome.UnclearRetry,
			Cure: "the ids for deduplicate must be in the slot of the stream: give it a name without braces, or with a hash tag",
		},
		{Codes: []string{"WRONGPASS"}, Class: outcome.Unauthorized, Cure: "check username and password"},
		{Codes: []string{"NOAUTH"}, Class: outcome.Unavailable, Cure: "set password"},
		{Codes: []string{"OOM"}, Class: outcome.Unavailable, Cure: "the server is full: raise maxmemory, or keep less with max_len"},
		{Codes: []string{"MISCONF"}, Class: outcome.Unavailable, Cure: "the server cannot write to its disk"},
		{Codes: []string{"READONLY"}, Class: outcome.Unavailable, Cure: "that is a replica: name the primary, or use sentinel_master"},
		{Codes: []string{"NOREPLICAS"}, Class: outcome.Unavailable, Cure: "replicas are missing: see min-replicas-to-write"},
		{
			Codes: []string{"MOVED", "ASK"},
			Class: outcome.Unavailable,
			Cure:  "it is a cluster: set cluster: true; else it is moving the key",
		},
		{Codes: []string{"CLUSTERDOWN"}, Class: outcome.Unavailable, Cure: "nodes of the cluster are missing"},
	}
}

// causes is the table of errors that notifyd itself finds, and of lost
// connections.
func causes() outcome.Table[error] {
	return outcome.Table[error]{
		{Codes: []error{errNoSubscribers}, Class: outcome.Unavailable, Own: outcome.UnclearRetry},
		{
			Codes: []error{errReplicas},
			Class: outcome.Unavailable,
			Cure:  "the primary has the event, so it will come again; check the replicas, or raise wait_timeout",
		},
		{
			Codes: []error{errReplica},
			Class: outcome.Unavailable,
			Cure:  "its subscribers alone would hear a message: name the primary, or use sentinel_master",
		},
		{Codes: []error{errEvicts}, Class: outcome.Unavailable, Cure: "set maxmemory-policy noeviction, or take a server of its own"},
		{
			Codes: []error{io.EOF, syscall.ECONNRESET, syscall.EPIPE}, Class: outcome.Unavailable,
			Cure: "the server has closed the connection; it does so when it stops, and when it has more than maxclients",
		},
	}
}

// lookUp returns the party at fault and the cure. alone reports that no other event was sent that could be meant.
func (h *Handler) lookUp(err error, alone bool) (class outcome.Class, cure string) {
	own := h.encoder.fixed == ""
	means := meaning(err)
	if means == "" {
		class, cure = outcome.Match(causes(), own, err)
	} else {
		class, cure = h.codes().Find(own, means)
		if means == tooLarge && !alone {
			class = outcome.Unavailable
		}
	}

	if class == outcome.Unknown {
		return outcome.Unavailable, h.timeoutCure(err)
	}
	return class, cure
}

// answer returns the error of DeliverBatch for a failure.
func (h *Handler) answer(ctx context.Context, err error, events int) error {
	isKnown := slices.ContainsFunc([]error{errReplicas, errNoSubscribers, errReplica}, func(known error) bool {
		return errors.Is(err, known)
	})
	decided := isKnown || isReply(err) || outcome.IsContent(err)
	if ctx.Err() != nil && !decided {
		return h.out.Ended(ctx, "")
	}

	class, cure := h.lookUp(err, events == 1)

	// Redis repeats the arguments of a command that it does not know: a payload, perhaps.
	text, _, cut := strings.Cut(err.Error(), ", with args beginning with:")

	if code(err) != "" && h.encoder.fixed != "" {
		// A name made of a payload does not belong into logs.
		text = h.encoder.what + " " + h.encoder.fixed + ": " + text
	}

	f := outcome.Failure{Err: err, Text: text, Cure: cure}
	if reply, ok := errors.AsType[goredis.Error](err); ok && !cut {
		f.Code = reply
	}

	return class.Mark(0, h.out.Line(f))
}

// timeoutCure names the timeout that is over, "" if none is.
func (h *Handler) timeoutCure(err error) string {
	timeout, ok := errors.AsType[net.Error](err)
	if !ok || !timeout.Timeout() || errors.Is(err, errConnectTimeout) {
		return ""
	}
	if op, ok := errors.AsType[*net.OpError](err); ok && op.Op == "write" {
		return fmt.Sprintf("not sent within write_timeout of %v", h.cfg.WriteTimeout)
	}
	return fmt.Sprintf("no answer within read_timeout of %v; it may have been taken all the same", h.cfg.ReadTimeout+h.cfg.waitTimeout())
}
