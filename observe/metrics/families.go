package metrics

// family is one metric.
type family struct {
	name, help string
	labels     []string
}

// families are all metrics of a relay.
func families() []family {
	destination := []string{"destination"}
	position := []string{"destination", "shard"}

	return []family{
		{"notifyd_deliveries_total", "Answers of handlers, by outcome: delivered, failed (to be retried), dead (given " +
			"up), released (no attempt counted), parked (shared a call with an earlier event of its aggregate, which " +
			"failed).", []string{"destination", "outcome"}},
		{"notifyd_attempts_total", "Attempts by the cause of failure: event, destination, relay, or none for those " +
			"that succeeded. Attempts that fail because of the destination or the relay do not count towards " +
			"max_attempts.", []string{"destination", "class"}},
		{"notifyd_not_begun_total", "Deliveries that were claimed and not begun, by reason: no_capacity, withdrawn " +
			"(before their turn, because the lock budget ended, the destination went down or the relay is stopping), " +
			"order (an earlier event of their aggregate goes first), rate_limit (the limit of their destination, or " +
			"of their key, is reached; counted each time), expired (too old).", []string{"destination", "reason"}},
		{"notifyd_filtered_total", "Events that were not for the destination, by `when` of their route. One for which " +
			"the expression fails is a dead letter instead.", destination},
		{"notifyd_commit_to_handler_seconds", "Histogram. Age of events when their first attempt begins. It counts " +
			"from created_at, which is the start of the writer's transaction, to the relay's clock, and so includes " +
			"the transaction itself. Events with available_at, replays and reports of dead letters are left out.", destination},
		{"notifyd_commit_to_ack_seconds", "Histogram. Age of events when the destination acknowledges them, failed " +
			"attempts included; counted like notifyd_commit_to_handler_seconds. An event with available_at that needs " +
			"a retry is included, and counts from created_at.", destination},
		{"notifyd_backlog_deliveries", "Backlog in the tables, by state: fresh (no relay has handled the event; in a " +
			"stream the lag of the position), retry, running (under a lease), parked (behind an earlier event of its " +
			"aggregate). Counting ends at 10000, which means 10000 or more.", []string{"destination", "state"}},
		{"notifyd_backlog_oldest_seconds", "Age of the event that has waited longest for the destination, among the " +
			"first 10000; 0 if none waits.", destination},
		{"notifyd_dead_letters", "Dead letters in the tables; 10000 means 10000 or more.", destination},
		{"notifyd_destination_down", "1 while the lane pauses because its destination is down.", destination},
		{"notifyd_destination_paused", "1 while the relay honours a pause of the destination: its events wait until " +
			"an operator resumes it.", destination},
		{"notifyd_destination_state", "1 for the current state of the breaker: closed (all is well), open (nothing is " +
			"sent until a pause ends), probing (one delivery at a time), ramping (the destination answers again, and " +
			"each round of answers doubles the number of deliveries), throttled (the destination works and has " +
			"requested fewer deliveries).", []string{"destination", "state"}},
		{"notifyd_destination_down_seconds", "How long ago the breaker left the state closed, as this relay knows; 0 " +
			"while it is closed.", destination},
		{"notifyd_destination_next_probe_seconds", "Time until the next delivery may find out whether the destination " +
			"is up again; 0 if that is now, or the breaker is not open.", destination},
		{"notifyd_destination_failing_events", "Calls that have failed since an event was delivered, several of one " +
			"event among them, whether an attempt counted or not; 0 once one is delivered.", destination},
		{"notifyd_destination_failing_seconds", "How long ago the first of them failed; 0 if there is none.", destination},
		{"notifyd_destination_throttled_gap_seconds", "The gap between the starts of two deliveries, because the " +
			"destination has requested fewer; 0 if there is none.", destination},
		{"notifyd_destination_throttled_seconds", "Time until the end of the pause that the destination has " +
			"requested, as by Retry-After; 0 without one.", destination},
		{"notifyd_destination_throttled_by_event", "The id of the event whose answer requested that pause; 0 without one.", destination},
		{"notifyd_throttled_total", "Answers in which the destination requested fewer deliveries. They count no attempt.", destination},
		{"notifyd_destination_rate_limited", "1 while deliveries wait for the rate limit of the destination, or of " +
			"one of its keys.", destination},
		{"notifyd_destination_running", "Calls of the handler that are under way.", destination},
		{"notifyd_destination_stuck", "Calls of the handler that had not returned 5 s after their timeout, were " +
			"abandoned and counted as failed, and still have not returned. When their number reaches the concurrency, " +
			"the lane has fewer workers; at twice the concurrency it has none.", destination},
		{"notifyd_destination_queued", "Deliveries that wait in memory for a call.", destination},
		{"notifyd_destination_capacity", "Deliveries that still fit into memory.", destination},
		{"notifyd_destination_aggregates", "Aggregates that have a delivery under way or parked; 0 where order is not kept.", destination},
		{"notifyd_destination_pace_seconds", "Average time that a worker needs for an event.", destination},
		{"notifyd_destination_connected", "1 while the handler has a connection; only for handlers that report it.", destination},
		{"notifyd_destination_blocked", "1 while the destination has requested a pause, as RabbitMQ does with " +
			"connection.blocked; only for handlers that report it.", destination},
		{"notifyd_destination_unconfirmed", "Messages that are sent and not answered yet; only for handlers that report it.", destination},
		{"notifyd_claims_total", "Claims that found events or deliveries.", nil},
		{"notifyd_claimed_total", "Events and deliveries that were claimed.", nil},
		{"notifyd_queries_total", "Queries for work, whether they found any or not: ids (from notifications), sweep, " +
			"due (retries).", []string{"source"}},
		{"notifyd_query_failures_total", "Queries for work that failed.", []string{"source"}},
		{"notifyd_leases_held", "Deliveries that continue under a lease, because they outlived their claim.", nil},
		{"notifyd_leases_granted_total", "Leases that were written.", nil},
		{"notifyd_leases_renewed_total", "Extensions of leases.", nil},
		{"notifyd_leases_lost_total", "Leases that were abandoned because a handler ignored the end of its context.", nil},
		{"notifyd_leases_taken_over_total", "Deliveries that were taken over from relays that are gone, or whose " +
			"answers a crash of the database lost.", nil},
		{"notifyd_fenced_total", "Answers that were refused because their lease was taken over, lost in a crash of " +
			"the database, or settled just before a connection was lost.", nil},
		{"notifyd_mode", "1 for the mode of the table, queue or stream. In a stream the metrics of claims, queries " +
			"and leases are absent; in a queue, those of positions.", []string{"mode"}},
		{"notifyd_position_head", "The highest id that was read for a destination of a stream, at the relay that owns " +
			"its shard. The destination is empty for the unrouted scanner.", position},
		{"notifyd_position_lag", "Number of ids that have yet to be read or acknowledged, according to the tables, at " +
			"the relay that owns the shard. Ids of transactions that were rolled back count until they are read; ids " +
			"between two partitions never count. Absent while the database does not answer.", position},
		{"notifyd_position_open", "Events that were read, and not acknowledged or stored yet.", position},
		{"notifyd_position_gaps", "Ranges of ids that were skipped because their rows were not visible: they may " +
			"belong to open transactions.", position},
		{"notifyd_position_open_ranges", "Ranges of ids that are open at the position: gaps, and events that were " +
			"read and not acknowledged or stored yet. Above 4,096 they are written every 1 to 5 seconds, and a crash " +
			"repeats the deliveries since.", position},
		{"notifyd_position_gap_oldest_seconds", "How long the oldest gap has been known; 0 if there is none.", position},
		{"notifyd_position_blocked_aggregates", "Aggregates that wait for a stored delivery.", position},
		{"notifyd_position_saves_total", "Writes of the position. The counter restarts when a relay takes the shard.", position},
		{"notifyd_replay_remaining", "Number of ids that the running replay of a destination has yet to send, some of " +
			"which have no event, at the relay that owns the shard. Absent while none runs.", destination},
		{"notifyd_position_unowned", "1 while no relay holds the shard of a destination of this relay, according to " +
			"the tables: nothing is delivered to it.", position},
		{"notifyd_notifications_suppressed", "1 while the relay suppresses the notify trigger and polls.", nil},
		{"notifyd_wake_state", "1 for the current state of the relay: listening (writers notify), polling (the relay " +
			"suppresses notifications and reads without a pause), settling (writers notify again, and transactions " +
			"that did not may still be open).", []string{"state"}},
		{"notifyd_listener_connected", "1 while notifications arrive, according to the last proof.", nil},
		{"notifyd_listener_proof_age_seconds", "Time since the last proof that notifications arrive: a canary that " +
			"came back. It grows while the relay sweeps, when nothing depends on notifications; absent before the first proof.", nil},
		{"notifyd_listener_lost_total", "Listening connections that were lost, or closed because a canary did not arrive.", nil},
		{"notifyd_canary_round_trip_seconds", "Time from sending the last canary to receiving it; absent before the first.", nil},
		{"notifyd_canaries_total", "Notifications that the relay sent to itself as proof.", nil},
		{"notifyd_canary_failures_total", "Canaries that failed: overdue (not received in time), unsent.", []string{"reason"}},
		{"notifyd_database_up", "1 while the database answers; 0 also while it refuses the relay, for example its password.", nil},
		{"notifyd_database_refuses", "Parts of the relay whose statements the database refuses although it answers, " +
			"by SQLSTATE; absent while it refuses nothing. A part that cannot record results delivers nothing more.", []string{"code"}},
		{"notifyd_hangs", "Kinds of work that are due although nothing holds them back, and that the relay has not " +
			"touched for 2 minutes or longer; /readyz?verbose and the log name them. 0 while the relay works.", nil},
		{"notifyd_connections", "Open connections to the database, by role; pool is the pool of the program, the " +
			"others are the relay's own.", []string{"role"}},
		{"notifyd_connections_opened_total", "Connections to the database that were opened.", []string{"role"}},
		{"notifyd_missing_events", "Stored deliveries whose events are missing from outbox_events, of each " +
			"destination and of those without one; 10000 means 10000 or more. They wait for their events.", nil},
		{"notifyd_delayed_events", "Events that wait for their available_at; 10000 means 10000 or more. Absent while " +
			"the database does not answer, like every metric that is counted in the tables.", nil},
		{"notifyd_oldest_waiting_seconds", "Age of the event that has waited longest; absent while the database does not answer.", nil},
	}
}
