package store

// SQLAcknowledged records in outbox_audit that replayed deliveries ($1 events, $2 destinations) were acknowledged. It
// runs before their rows are deleted, in the same transaction: a row that goes without such an entry was not
// delivered, as far as is known. Rows that no person has replayed leave
// none; those of a replayed range are told by their number, or by the # that begins the name of their line.
const SQLAcknowledged = `INSERT INTO outbox_audit (actor, action, event_id, destination, details)
	SELECT 'relay', 'delivered', d.event_id, d.destination, jsonb_build_object('event_type', d.event_type, 'replay', d.replays)
	FROM unnest($1::bigint[], $2::text[]) AS p(event_id, destination)
	JOIN outbox_deliveries AS d ON d.event_id = p.event_id AND d.destination = p.destination
	WHERE d.replays > 0 OR starts_with(d.ordering_key, '#')`
