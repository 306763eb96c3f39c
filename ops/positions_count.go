package ops

import (
	"cmp"
	"context"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd/internal/routes"
	"github.com/notifyd/notifyd/internal/routing"
	"github.com/notifyd/notifyd/observe"
)

// TypeCount is how many events of a type are in a range.
type TypeCount struct {
	Type  string `json:"type"`
	Count int64  `json:"count"`
}

// countPage is how many events one statement counts.
const countPage = 10_000

// sqlCount counts a page of events by type. $4 are the ids that are open.
const sqlCount = `WITH page AS MATERIALIZED (SELECT id, event_type FROM outbox_events WHERE id > $1 AND id <= $2 ORDER BY id LIMIT $3),
	open AS MATERIALIZED (SELECT coalesce(range_agg(g), '{}') AS ids FROM outbox_positions AS p, unnest(p.open) AS g
		WHERE p.destination = $4)
SELECT event_type, count(*) FILTER (WHERE NOT open.ids @> page.id), max(page.id), count(*) FROM page CROSS JOIN open GROUP BY event_type`

// CountReplay counts the events of a range that a dry run of StartReplay has returned, by type, the most
// frequent first, in statements of 10,000 events each. It stops after about limit events, if that is above 0, and
// reports more then. Those with a stored delivery, which a replay passes over, are counted as well.
func (s *Client) CountReplay(ctx context.Context, r observe.Replay, limit int64) (all []TypeCount, more bool, err error) {
	counts := make(map[string]int64)
	for after, seen := r.From-1, int64(0); after < r.To; {
		if limit > 0 && seen >= limit {
			more = true
			break
		}

		n := int64(0)
		err := s.ofStream(ctx, "count the events of a range", pgx.ReadOnly, func(tx pgx.Tx) (err error) {
			all, err := routes.Read(ctx, tx, &r.Destination)
			if err != nil {
				return err
			}

			now := routes.Newest(all)
			rows, err := tx.Query(ctx, sqlCount, after, r.To, countPage, r.Destination)
			if err != nil {
				return err
			}

			var name string
			var wanted, last, seen int64
			_, err = pgx.ForEachRow(rows, []any{&name, &wanted, &last, &seen}, func() error {
				after = max(after, last)
				n += seen
				if wanted <= 0 || now == nil || !now.Gets(name) {
					return nil
				}
				if len(r.Types) == 0 || routing.Best(r.Types, name) >= 0 {
					counts[strings.Clone(name)] += wanted
				}
				return nil
			})

			return err
		})
		if err != nil {
			return nil, false, err
		}

		seen += n
		if n < countPage {
			break
		}
	}

	for name, n := range counts {
		all = append(all, TypeCount{name, n})
	}

	slices.SortFunc(all, func(a, b TypeCount) int {
		return cmp.Or(cmp.Compare(b.Count, a.Count), cmp.Compare(a.Type, b.Type))
	})
	return all, more, nil
}
