package ops

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd/internal/store"
	"github.com/notifyd/notifyd/observe"
)

// Pause stops the deliveries to a destination at all relays of the tables, until Resume: it is stored, and lasts through
// restarts. Running calls end as usual, its events wait, and no attempt is counted. The relay that the client is of honours
// the pause before Pause returns; others look for pauses once a second. No relay has to know the destination. Pausing
// again with a reason replaces actor and reason; without a reason it changes neither. Each text has up to 1,000 bytes; the error
// about another one wraps [ErrInvalid].
func (s *Client) Pause(ctx context.Context, destination string, a Action) error {
	p := observe.Pause{By: a.Actor, Reason: a.Reason}
	return s.pause(ctx, true, destination, a, p, func(tx pgx.Tx) error {
		if p.By == "" {
			if err := tx.QueryRow(ctx, `SELECT session_user`).Scan(&p.By); err != nil {
				return err
			}
		}
		return store.SetPause(ctx, tx, s.cfg.Schema, destination, p)
	})
}

// Resume ends the pause of a destination at all relays, and reports whether it was paused.
func (s *Client) Resume(ctx context.Context, destination string, a Action) (was bool, err error) {
	err = s.pause(ctx, false, destination, a, observe.Pause{By: a.Actor, Reason: a.Reason}, func(tx pgx.Tx) error {
		was, err = store.ClearPause(ctx, tx, s.cfg.Schema, destination)
		if err == nil && !was {
			err = errNotPaused
		}
		return err
	})
	switch {
	case errors.Is(err, errNotPaused):
		return false, nil
	case err != nil:
		return false, err
	case a.DryRun:
		all, err := s.Pauses(ctx)
		_, was = all[destination]
		return was, err
	}

	return was, nil
}

// errNotPaused ends a transaction in which there was nothing to do.
var errNotPaused = errors.New("it is not paused")

// pause runs f, which stores a pause or its end, unless it is a dry run, and records the action.
func (s *Client) pause(ctx context.Context, is bool, destination string, a Action, p observe.Pause, f func(pgx.Tx) error) error {
	action := "resume"
	if is {
		action = "pause"
	}

	what := fmt.Sprintf("%s %q", action, destination)
	if destination == "" {
		return fmt.Errorf("%s: %w: a pause has a destination", what, ErrInvalid)
	}
	if err := store.CheckPause(destination, p); err != nil {
		return fmt.Errorf("%s: %w: %w", what, ErrInvalid, err)
	}
	if a.DryRun {
		return nil
	}

	err := s.write(ctx, what, func(tx pgx.Tx, _ time.Time) error {
		if err := f(tx); err != nil {
			return err
		}

		details := make(map[string]string)
		if a.Reason != "" {
			details["reason"] = a.Reason
		}

		return s.record(ctx, tx, a, action, nil, destination, details)
	})
	if err == nil && s.cfg.Paused != nil {
		s.cfg.Paused(destination, is)
	}

	return err
}

// Pauses returns the paused destinations.
func (s *Client) Pauses(ctx context.Context) (all map[string]observe.Pause, err error) {
	all = make(map[string]observe.Pause)
	err = s.read(ctx, "list pauses", func(tx pgx.Tx, _ time.Time) error {
		rows, err := tx.Query(ctx, s.sql(`SELECT destination, paused_by, reason, paused_at FROM {pauses}`))
		if err != nil {
			return err
		}

		var name string
		var p observe.Pause
		_, err = pgx.ForEachRow(rows, []any{&name, &p.By, &p.Reason, &p.Since}, func() error {
			all[name] = p
			return nil
		})

		return err
	})

	return all, err
}
