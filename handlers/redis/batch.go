package redis

import (
	"context"
	"errors"
	"fmt"

	goredis "github.com/redis/go-redis/v9"

	"github.com/notifyd/notifyd/handlers/internal/outcome"
)

// batch is one call of DeliverBatch.
type batch struct {
	h    *Handler
	errs []error // by event
}

// run sends all groups and records the answers.
func (b *batch) run(ctx context.Context, l *lane, all []group) {
	stop := context.AfterFunc(ctx, l.abort)

	// A replica takes a message as the primary does, and its own subscribers alone hear it. A server that
	// was the primary for the batch before may be one by now.
	var replica error
	if b.h.cfg.Channel != "" && !l.cluster {
		replica = primary(ctx, l)
	}

	switch {
	case replica != nil:
		for _, g := range all {
			b.failAll(g.commands, replica)
		}
		l.broken = true
	case b.h.encoder.script != nil:
		b.runScripts(ctx, l, all)
	case l.cluster:
		b.runCluster(ctx, l, all)
	default:
		b.runOne(ctx, l, all)
	}

	if !stop() {
		l.broken = true
	}
}

// unread reports whether commands have no answer at all. Where a connection
// could be made and the server refused our password, the library gives back an
// error, and leaves the commands as if they had succeeded.
func unread(commands []goredis.Cmder) bool {
	first, ok := commands[0].(*goredis.Cmd)
	return ok && first.Err() == nil && first.Val() == nil
}

// sent is a group on its way.
type sent struct {
	group

	multi, exec *goredis.Cmd // nil for a group of one
	replies     []*goredis.Cmd
}

// runOne sends everything to one server at once.
func (b *batch) runOne(ctx context.Context, l *lane, all []group) {
	pipe := l.client.Pipeline()
	sending := make([]sent, len(all))
	for i, g := range all {
		s := sent{group: g}

		if len(g.commands) > 1 {
			s.multi = pipe.Do(ctx, "multi")
		}

		for _, c := range g.commands {
			s.replies = append(s.replies, pipe.Do(ctx, c.args...))
		}

		if s.multi != nil {
			s.exec = pipe.Do(ctx, "exec")
		}

		sending[i] = s
	}

	wait := b.wait(ctx, pipe)
	done, whole := pipe.Exec(ctx)

	if whole != nil && unread(done) {
		for _, s := range sending {
			b.failAll(s.commands, whole)
		}
		l.broken = !isReply(whole)
		return
	}

	var lost error
	for _, s := range sending {
		if lost == nil {
			lost = b.read(s)
		} else {
			b.failAll(s.commands, lost)
		}
	}

	if lost == nil && wait != nil {
		lost = b.readWait(wait, all)
	}

	l.broken = lost != nil
}

// read records the answers to a group. Its error means that the answers behind it
// cannot be read.
func (b *batch) read(s sent) (lost error) {
	if s.multi == nil {
		return b.readEach(s)
	}

	switch err := s.multi.Err(); {
	case code(err) == "NOAUTH":
		b.failAll(s.commands, err)
		return err // the server has closed the connection over the next command
	case isReply(err):
		// Redis has not begun a transaction, and so has run each command
		// separately. This happens for a user without the right to MULTI.
		return b.readEach(s)
	case err != nil:
		b.failAll(s.commands, err)
		return err
	}

	var refused error
	for _, r := range s.replies {
		switch err := r.Err(); {
		case isReply(err):
			if refused == nil {
				refused = err
			}
		case err != nil:
			b.failAll(s.commands, err)
			return err
		case r.Val() != "QUEUED":
			b.failAll(s.commands, errConfused)
			return errConfused
		}
	}

	err := s.exec.Err()
	if goredis.HasErrorPrefix(err, "EXECABORT") {
		if refused == nil {
			refused = err
		}
		b.failAll(s.commands, refused)
		return nil
	}

	results, ok := s.exec.Val().([]any)
	if err == nil && (!ok || len(results) != len(s.commands)) {
		err = errConfused
	}

	if err != nil {
		// The library gives up in the middle of the results where one of them is
		// an error of certain kinds, and the unread answers would be taken for
		// the answer to something else.
		b.failAll(s.commands, err)
		return err
	}

	for i, c := range s.commands {
		if failed, ok := results[i].(error); ok {
			b.errs[c.event] = failed
		} else {
			b.errs[c.event] = b.check(results[i])
		}
	}

	return nil
}

// readEach enters the answers to commands outside of a transaction.
func (b *batch) readEach(s sent) (lost error) {
	for i, c := range s.commands {
		err := s.replies[i].Err()
		if err == nil {
			err = b.check(s.replies[i].Val())
		}
		b.errs[c.event] = err
		if err != nil && !isReply(err) && !errors.Is(err, errNoSubscribers) {
			lost = err
		}
	}
	return lost
}

// check looks at the answer for an event that Redis has taken: the id of an
// entry, or the number of subscribers.
func (b *batch) check(reply any) error {
	switch v := reply.(type) {
	case string:
		isID := v != "" && v != "QUEUED" && v != "OK"
		if b.h.cfg.Stream != "" && isID {
			return nil
		}
	case int64:
		if b.h.cfg.Channel != "" && v == 0 && b.h.cfg.RequireSubscribers {
			return errNoSubscribers
		}
		if b.h.cfg.Channel != "" {
			return nil
		}
	}
	return errConfused
}

// wait has the server wait for replicas; nil where none are asked for.
func (b *batch) wait(ctx context.Context, pipe goredis.Pipeliner) *goredis.Cmd {
	n := b.h.cfg.WaitReplicas
	if n == 0 {
		return nil
	}
	return pipe.Do(ctx, "wait", n, b.h.cfg.WaitTimeout.Milliseconds())
}

// readWait records whether enough replicas have the entries.
func (b *batch) readWait(wait *goredis.Cmd, all []group) error {
	n, err := wait.Int()
	if err == nil && n < b.h.cfg.WaitReplicas {
		err = fmt.Errorf("%w: %d of %d within wait_timeout of %v", errReplicas, n, b.h.cfg.WaitReplicas, b.h.cfg.WaitTimeout)
	}

	if err == nil {
		return nil
	}

	for _, g := range all {
		for _, c := range g.commands {
			if b.errs[c.event] == nil {
				b.errs[c.event] = err
			}
		}
	}

	if isReply(err) || errors.Is(err, errReplicas) {
		return nil
	}
	return err
}

// runCluster sends one group after the other, each to the node that has its
// key. A single command is sent as a transaction too: otherwise the library
// would repeat it if its answer is lost.
func (b *batch) runCluster(ctx context.Context, l *lane, all []group) {
	var lost error
	for _, g := range all {
		if lost != nil {
			b.failAll(g.commands, lost)
			continue
		}

		pipe := l.client.TxPipeline()
		replies := make([]*goredis.Cmd, len(g.commands))
		for i, c := range g.commands {
			replies[i] = pipe.Do(ctx, c.args...)
		}

		_, whole := pipe.Exec(ctx)
		for i, c := range g.commands {
			err := replies[i].Err()
			if err == nil {
				err = b.check(replies[i].Val())
			}

			if errors.Is(err, errConfused) && whole != nil {
				err = whole
			}

			if goredis.HasErrorPrefix(err, "EXECABORT") && isReply(whole) {
				err = whole // why it was aborted
			}

			b.errs[c.event] = err
		}

		if whole != nil && !isReply(whole) {
			lost = whole
		}
	}

	l.broken = lost != nil
}

func (b *batch) failAll(commands []command, err error) {
	for _, c := range commands {
		b.errs[c.event] = err
	}
}

// answers returns the errors of DeliverBatch.
func (b *batch) answers(ctx context.Context) []error {
	return outcome.Answers(b.errs, func(err error) error { return b.h.answer(ctx, err, len(b.errs)) })
}
