package redis

import (
	"context"
	_ "embed"
	"strconv"
	"strings"

	goredis "github.com/redis/go-redis/v9"

	"github.com/notifyd/notifyd/delivery"
)

//go:embed deduplicate.lua
var deduplicate string

const (
	// perScript is how many events a script adds at most: Redis does nothing else
	// meanwhile, for some milliseconds.
	perScript = 1000
	// maxArgs is how many arguments XADD may have in a script: the stack of Lua has
	// room for 8000.
	maxArgs = 7000
	// scriptRights are the rights of a user who runs the script.
	scriptRights = "~key ~{key}:notifyd* +eval +evalsha +xadd +exists +sadd +srem +scard +sismember +rename +unlink"
)

// script is the server's side of [Config.Deduplicate].
type script struct {
	*goredis.Script

	window int
}

// uniqueID is the id by which a copy of ev is recognised. The time tells apart the
// events of two databases that share a stream, and those of one before and after it
// was emptied: their ids begin at 1 again, and an event that is taken for another's
// copy is lost.
func uniqueID(ev *delivery.Event) string {
	return ev.Destination + "-" + ev.DedupeID() + "-" + strconv.FormatInt(ev.CreatedAt.UnixMicro(), 36)
}

// companion returns the key of the recent ids of a stream. In a cluster it is in the
// slot of the stream, whose hash tag it has, or whose name is its hash tag. A name with
// braces that make no hash tag has no such key; a cluster refuses it (CROSSSLOT).
func companion(stream string) string {
	if _, tag, ok := strings.Cut(stream, "{"); ok && strings.Index(tag, "}") > 0 {
		return stream + ":notifyd"
	}
	return "{" + stream + "}:notifyd"
}

// command returns the command that adds the events of g; how is eval or evalsha.
func (s *script) command(how string, g group) []any {
	text := s.Hash()
	if how == "eval" {
		text = deduplicate
	}
	recent := companion(g.key)
	args := []any{how, text, 3, g.key, recent, recent + ":older", s.window}
	for _, c := range g.commands {
		entry := c.args[2:] // behind XADD and the key
		args = append(args, c.id, len(entry))
		args = append(args, entry...)
	}
	return args
}

// runScripts adds the events that the streams do not have yet, in rounds with one
// script for each stream: where one has failed, no later event is added to its stream.
// A script that fails may have added events before that; they are dropped when the
// batch comes again.
func (b *batch) runScripts(ctx context.Context, l *lane, all []group) {
	for len(all) > 0 {
		now := make([]group, len(all))
		for i, g := range all {
			now[i] = group{g.key, g.commands[:min(len(g.commands), perScript)]}
		}

		unknown, lost := b.call(ctx, l, "evalsha", now)
		if len(unknown) > 0 && lost == nil {
			// The server has not seen the script since its start.
			_, lost = b.call(ctx, l, "eval", unknown)
		}

		var next []group
		for i, g := range all {
			rest := g.commands[len(now[i].commands):]
			err := b.errs[g.commands[0].event]
			if lost != nil {
				err = lost
			}

			if err != nil {
				b.failAll(rest, err)
			} else if len(rest) > 0 {
				next = append(next, group{g.key, rest})
			}
		}

		l.broken = lost != nil
		all = next
	}
}

// call runs a script for each group, all at once, and records the answers. It returns
// the groups whose server does not know the script. After an error the connection
// must not be used again.
func (b *batch) call(ctx context.Context, l *lane, how string, all []group) (unknown []group, lost error) {
	pipe := l.client.Pipeline()
	replies := make([]*goredis.Cmd, len(all))
	for i, g := range all {
		replies[i] = pipe.Do(ctx, b.h.encoder.script.command(how, g)...)
	}

	wait := b.wait(ctx, pipe)
	_, whole := pipe.Exec(ctx)

	for i, g := range all {
		err := replies[i].Err()
		if _, ok := replies[i].Val().(int64); err == nil && !ok {
			// The library leaves a command as if it had succeeded where it could not
			// log in.
			err = whole
			if err == nil {
				err = errConfused
			}
		}

		if code(err) == "NOSCRIPT" {
			unknown = append(unknown, g)
		}

		if err != nil && !isReply(err) {
			lost = err
		}
		b.failAll(g.commands, err) // with nil all are there
	}

	if lost == nil && wait != nil {
		lost = b.readWait(wait, all)
	}

	return unknown, lost
}
