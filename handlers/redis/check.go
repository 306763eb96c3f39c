package redis

import (
	"context"
	"fmt"
	"strings"

	"github.com/notifyd/notifyd/delivery"
)

// Check connects, authenticates and sends PING, on a separate connection. The server's
// refusal of PING to a user without that right is enough. Check also looks for settings
// that lose acknowledged events, as far as the user may read them. It implements
// delivery.Checker.
func (h *Handler) Check(ctx context.Context) error {
	l := newLane(ctx, h)
	defer l.close()
	stop := context.AfterFunc(ctx, l.abort)
	defer stop()
	if err := l.client.Ping(ctx).Err(); err != nil && code(err) != "NOPERM" {
		return h.answer(ctx, err, 0)
	}
	if err := h.checkServer(ctx, l); err != nil {
		return h.answer(ctx, err, 0)
	}
	return nil
}

// checkServer returns an error if the server would lose events: if it is a replica, or deletes
// streams when its memory is full. In a cluster it asks one node.
func (h *Handler) checkServer(ctx context.Context, l *lane) error {
	if !l.cluster {
		if err := primary(ctx, l); err != nil {
			return err
		}
	}

	if h.cfg.Stream == "" {
		return nil
	}

	text, err := l.client.Info(ctx, "memory").Result()
	if err != nil {
		if isReply(err) {
			return nil // the user may not ask
		}
		return err
	}

	limit := property(text, "maxmemory")
	policy := property(text, "maxmemory_policy")
	deletes := strings.HasPrefix(policy, "allkeys-") || strings.HasPrefix(policy, "volatile-") && h.cfg.Deduplicate > 0
	if limit != "" && limit != "0" && deletes {
		return fmt.Errorf("%w: maxmemory-policy is %s", errEvicts, policy)
	}

	return nil
}

// property returns the value of a line of INFO.
func property(info, name string) string {
	for line := range strings.Lines(info) {
		if value, ok := strings.CutPrefix(line, name+":"); ok {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

// primary returns errReplica if the server of a lane is a replica, and nil where the user may not ask.
func primary(ctx context.Context, l *lane) error {
	answer, err := l.client.Do(ctx, "role").Slice()
	switch {
	case isReply(err):
		return nil
	case err != nil:
		return err
	case len(answer) > 0 && (answer[0] == "slave" || answer[0] == "replica"):
		return errReplica
	default:
		return nil
	}
}

// DescribeCheck implements delivery.CheckDescriber.
func (h *Handler) DescribeCheck() (tested, untested string) {
	tested = "the connection, the credentials if there are any, the answer to PING"
	if !h.cfg.Cluster {
		tested += ", that it is the primary (if the user may run ROLE)"
	}
	if h.cfg.Stream != "" {
		tested += ", that it does not evict the stream (if the user may run INFO)"
	}
	return tested, "the right to write"
}

// MaxBytes is the largest event that is sent. It implements delivery.Sizer.
func (h *Handler) MaxBytes() int {
	if h.encoder.message.Renders() {
		return 0 // the size of the payload says nothing about the body
	}
	return h.cfg.MaxMessageBytes
}

var (
	_ delivery.Checker        = (*Handler)(nil)
	_ delivery.CheckDescriber = (*Handler)(nil)
	_ delivery.Sizer          = (*Handler)(nil)
)
