package ops

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd/internal/store"
	"github.com/notifyd/notifyd/observe"
)

// Pause stops the deliveries to a destination at all relays of the tables, until Resume: it is stored, and lasts through
// restarts. Running calls end as usual, its events wait, and no attempt is counted. Relays look for pauses once a second. The
// destination need not be known. Pausing again replaces actor and reason, which have up to 1,000 bytes each.
func (s *Client) Pause(ctx context.Context, destination string, a Action) error {
	if err := a.validate(); err != nil {
		return err
	}
	return s.pauses(ctx, fmt.Sprintf("pause %q", destination), func(tx pgx.Tx) error {
		if a.DryRun {
			return nil
		}
		if a.Actor == "" {
			if err := tx.QueryRow(ctx, `SELECT session_user`).Scan(&a.Actor); err != nil {
				return err
			}
		}
		err := store.SetPause(ctx, tx, s.cfg.Schema, destination, observe.Pause{By: a.Actor, Reason: a.Reason})
		if errors.Is(err, store.ErrPause) {
			return fmt.Errorf("%w: %w", ErrInvalid, err)
		}
		return err
	})
}

// Resume ends the pause of a destination at all relays, and reports whether it was paused.
func (s *Client) Resume(ctx context.Context, destination string) (was bool, err error) {
	err = s.pauses(ctx, fmt.Sprintf("resume %q", destination), func(tx pgx.Tx) error {
		was, err = store.ClearPause(ctx, tx, s.cfg.Schema, destination)
		return err
	})
	return was && err == nil, err
}

// Pauses returns the paused destinations.
func (s *Client) Pauses(ctx context.Context) (all map[string]observe.Pause, err error) {
	all = make(map[string]observe.Pause)
	err = s.pauses(ctx, "list pauses", func(tx pgx.Tx) error {
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

func (s *Client) pauses(ctx context.Context, what string, f func(pgx.Tx) error) error {
	if err := pgx.BeginTxFunc(ctx, s.db, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, f); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}
