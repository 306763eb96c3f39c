package outboxes

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/notifyd/notifyd/internal/cli"

	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd/cmd/internal/config"
	"github.com/notifyd/notifyd/handlers"
	"github.com/notifyd/notifyd/internal/store"
)

// findTimeout bounds the query for outboxes, with its connection.
const findTimeout = 10 * time.Second

// Find returns the outboxes of a configuration: those in its list, and those that its query returns. wrong describes
// rows that are not valid; the other outboxes are returned nevertheless.
func Find(ctx context.Context, c *config.Config) (all []config.Outbox, wrong, err error) {
	all = slices.Clone(c.Outboxes.List)
	if c.Outboxes.Query == "" {
		return all, nil, nil
	}

	ctx, cancel := context.WithTimeoutCause(ctx, findTimeout, fmt.Errorf("the database did not answer within %v", findTimeout))
	defer cancel()

	setting := c.Mistake("outboxes.query", "outboxes.query")
	found, err := queryOutboxes(ctx, c)
	if err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return nil, nil, fmt.Errorf("%v: %w", setting, err)
	}

	hosts, err := hostsOf(c)
	if err != nil {
		return nil, nil, err
	}

	places := make(map[config.Place]string)
	ids := make(positionIDs)
	for i := range all {
		places[c.For(&all[i]).Place()] = all[i].Name
		_ = ids.claim(c.For(&all[i]), all[i].Name) // checkURLs has reported it
	}

	var mistakes []error
	for i := range found {
		o := &found[i]
		err := o.Validate()
		if err == nil {
			err = hosts.check(o)
		}
		var place config.Place
		if err == nil { // its url may be parsed, which reads the files that it names
			place = c.For(o).Place()
		}

		before, taken := places[place]
		if err == nil && !taken {
			err = ids.claim(c.For(o), o.Name)
		}
		switch {
		case err != nil:
		case slices.ContainsFunc(all, func(other config.Outbox) bool { return other.Name == o.Name }):
			err = errors.New("there is another one of that name")
		case taken:
			err = fmt.Errorf("%s has the same schema of the same database", before)
		default:
			places[place] = o.Name
			all = append(all, *o)
			continue
		}
		mistakes = append(mistakes, fmt.Errorf("%v: outbox %q: %s", setting, o.Name, cli.OneLine(err)))
	}
	return all, errors.Join(mistakes...), nil
}

// queryOutboxes sends the query, in a transaction that cannot write.
func queryOutboxes(ctx context.Context, c *config.Config) ([]config.Outbox, error) {
	cfg, err := Parse(&c.Database, c.DatabaseSetting("url"))
	if err != nil {
		return nil, err
	}

	cfg.DefaultQueryExecMode = pgx.QueryExecModeSimpleProtocol // every value as text, whatever its type
	cfg.RuntimeParams["application_name"] = "notifyd/outboxes"
	conn, err := Open(ctx, cfg)
	if err != nil {
		return nil, err
	}
	defer store.Close(ctx, conn)

	var all []config.Outbox
	err = pgx.BeginTxFunc(ctx, conn, pgx.TxOptions{AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
		// Of the role: the file may name a table without its schema.
		_, err := tx.Exec(ctx, `SET LOCAL search_path TO DEFAULT`)
		if err != nil {
			return err
		}

		rows, err := tx.Query(ctx, c.Outboxes.Query)
		if err != nil {
			return err
		}
		all, err = pgx.CollectRows(rows, outboxOf)
		return err
	})
	return all, err
}

// outboxOf reads a row, by the names of its columns.
func outboxOf(row pgx.CollectableRow) (o config.Outbox, err error) {
	named := false
	for i, value := range row.RawValues() {
		text := string(value) // empty for null
		switch column := row.FieldDescriptions()[i].Name; column {
		case "name":
			o.Name = text
			named = true
		case "schema":
			o.Schema = text
		case "database":
			o.Database = text
		case "url":
			o.URL = handlers.NewSecret(text)
		default:
			return o, fmt.Errorf("the column %q is unknown: there are name, schema, database and url", column)
		}
	}

	if !named {
		return o, errors.New("the column name is missing")
	}
	return o, nil
}
