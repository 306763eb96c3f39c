package outboxes

import (
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd/cmd/internal/config"
	"github.com/notifyd/notifyd/cmd/internal/destinations"
)

// positionIDs are the transactional ids of destinations with exactly_once, each with the outbox that has it.
type positionIDs map[string]string

// claim adds those of an outbox. It is an error if another one has one of them, or two of its destinations have the same.
func (p positionIDs) claim(c *config.Config, outbox string) error {
	db, err := ParseURL(config.Mistake{}, c.Database.URL.Reveal(), pgx.ParseConfig)
	if err != nil {
		return nil //nolint:nilerr // the relay reports it
	}

	ids := make(map[string]string)
	for _, d := range c.Destinations {
		for _, id := range destinations.TransactionalIDs(d, db.Database, c.Database.Schema) {
			if other, taken := ids[id]; taken {
				return fmt.Errorf("destinations %s and %s would share the transactional id %s: "+
					"give each one of its own, or leave transactional_id out", other, d.Name, id)
			}
			ids[id] = d.Name
		}
	}

	for id, destination := range ids {
		if before, taken := p[id]; taken {
			return fmt.Errorf("destination %s would have the transactional id %s, as that of outbox %s: "+
				"give the databases different names, or one of the outboxes a destination of its own with a transactional_id",
				destination, id, before)
		}
	}

	for id := range ids {
		p[id] = outbox
	}
	return nil
}

// checkPositionIDs returns an error if two listed outboxes, or two destinations of one, would share a transactional id.
func checkPositionIDs(c *config.Config) error {
	ids := make(positionIDs)
	var found config.Error
	if len(c.Outboxes.List) == 0 && c.Outboxes.Query == "" {
		if err := ids.claim(c, ""); err != nil {
			found.Mistakes = append(found.Mistakes, c.Mistake("destinations", err.Error()))
		}
	}

	for i := range c.Outboxes.List {
		o := &c.Outboxes.List[i]
		at := fmt.Sprintf("outboxes.list.%d", i)
		if err := ids.claim(c.For(o), o.Name); err != nil {
			found.Mistakes = append(found.Mistakes, c.Mistake(at, fmt.Sprintf("%s (%s): %v", at, o.Name, err)))
		}
	}

	if len(found.Mistakes) > 0 {
		return &found
	}
	return nil
}
