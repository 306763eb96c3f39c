package metrics

// family is one metric.
type family struct {
	name, help string
	labels     []string
}

// families are all metrics of a relay.
func families() []family {
	destination, position := []string{"destination"}, []string{"destination", "part"}
	return []family{
		{"notifyd_deliveries_total", "Answers of handlers, by outcome: delivered, failed (to be tried again), dead (given up), released (no attempt counted), parked (it shared a call with an earlier event of its aggregate, which failed).", []string{"destination", "outcome"}},
		{"notifyd_attempts_total", "Attempts by whose fault they failed for: event, destination, ours, or none for those that did not. Attempts for which the destination or the relay is to blame do not count towards max_attempts.", []string{"destination", "class"}},
		{"notifyd_not_begun_total", "Deliveries that were claimed and not begun with: no_room, withdrawn (taken back before their turn, because the lock budget ended, the destination went down or the relay stops), order (an earlier event of their aggregate goes first).", []string{"destination", "reason"}},
		{"notifyd_commit_to_handler_seconds", "Histogram. Age of events when their first attempt begins. It counts from created_at, which is the start of the writer's transaction, and so includes the transaction itself; to the relay's clock. Events with available_at and replays are left out.", destination},
		{"notifyd_commit_to_ack_seconds", "Histogram. Age of events when the destination has acknowledged them, failed attempts included; counted as notifyd_commit_to_handler_seconds. An event with available_at that has to be tried again is not told apart and counts from created_at.", destination},
		{"notifyd_backlog_deliveries", "What waits in the tables, by state: fresh (no relay has dealt with it; in a stream the lag of the position), retry, running (under a lease), parked (for an earlier event of its aggregate). Counting ends at 10000, which stands for all that is more.", []string{"destination", "state"}},
		{"notifyd_backlog_oldest_seconds", "How long the event has waited that has waited longest for the destination, among the 10000 that are looked at; 0 if none waits.", destination},
		{"notifyd_dead_letters", "Dead letters in the tables; 10000 stands for all that is more.", destination},
		{"notifyd_destination_unavailable", "1 while the lane pauses because its destination is down.", destination},
		{"notifyd_destination_paused", "1 while somebody has paused the destination at this relay: its events wait until it is resumed there.", destination},
		{"notifyd_destination_state", "1 for the state that the breaker is in: closed (all is well), open (nothing is sent before the end of a pause), probing (one delivery at a time), ramping (it answers again and gets twice as many with each round of answers), throttled (it works and has asked for fewer).", []string{"destination", "state"}},
		{"notifyd_destination_throttled_gap_seconds", "The gap between the beginnings of two deliveries, because the destination has asked for fewer; 0 if there is none.", destination},
		{"notifyd_throttled_total", "Answers with which the destination has asked for fewer deliveries. No attempt is counted for them.", destination},
		{"notifyd_destination_running", "Calls of the handler that are under way.", destination},
		{"notifyd_destination_stuck", "Calls of the handler that had not returned 5 s after their timeout, were given up and counted as failed, and still have not returned. From as many as the concurrency on the lane has fewer workers, from twice as many on none.", destination},
		{"notifyd_destination_queued", "Deliveries that wait in memory for a call.", destination},
		{"notifyd_destination_room", "For how many more deliveries there is room in memory.", destination},
		{"notifyd_destination_aggregates", "Aggregates that have a delivery under way or parked; 0 where order is not kept.", destination},
		{"notifyd_destination_pace_seconds", "What an event takes a worker, on average.", destination},
		{"notifyd_destination_connected", "1 while the handler has a connection; only for handlers that tell.", destination},
		{"notifyd_destination_blocked", "1 while the destination has asked for a pause, as RabbitMQ does by connection.blocked; only for handlers that tell.", destination},
		{"notifyd_destination_unconfirmed", "Messages that are sent and not answered yet; only for handlers that tell.", destination},
		{"notifyd_claims_total", "Claims that found events or deliveries.", nil},
		{"notifyd_claimed_total", "Events and deliveries that were claimed.", nil},
		{"notifyd_queries_total", "Questions for work, whether they found something or not: ids (that were notified), sweep, due (to be tried again).", []string{"source"}},
		{"notifyd_query_failures_total", "Questions for work that failed.", []string{"source"}},
		{"notifyd_leases_held", "Deliveries that go on under a lease, because they outlived their claim.", nil},
		{"notifyd_leases_granted_total", "Leases that were written.", nil},
		{"notifyd_leases_renewed_total", "Leases that were extended, counted each time.", nil},
		{"notifyd_leases_lost_total", "Leases that were given up because a handler ignored the end of its context.", nil},
		{"notifyd_leases_taken_over_total", "Deliveries that were taken over from relays that are gone, or whose answers a crash of the database took back.", nil},
		{"notifyd_fenced_total", "Answers that were refused because their lease was taken over, lost in a crash of the database, or settled just before a connection was lost.", nil},
		{"notifyd_mode", "1 for the mode of the table, queue or stream. In a stream what is of claims, queries and leases is absent; in a queue, what is of positions.", []string{"mode"}},
		{"notifyd_position_head", "The highest id that was read for a destination of a stream, at the relay that has its unit. The destination is empty for the search for types without a route.", position},
		{"notifyd_position_lag", "How many ids have yet to be read or acknowledged, as the tables tell the relay that has the unit. Those of transactions that were rolled back count until they are read; those between two partitions never. Absent while the database does not answer.", position},
		{"notifyd_position_open", "Events that were read and are not acknowledged or stored yet.", position},
		{"notifyd_position_gaps", "Ranges of ids that were read over because nobody could see them: of transactions that are open, as far as is known.", position},
		{"notifyd_position_gap_oldest_seconds", "For how long the oldest of them has been known; 0 if there is none.", position},
		{"notifyd_position_blocked_aggregates", "Aggregates that wait for a stored delivery.", position},
		{"notifyd_position_saves_total", "Writes of the position. Counted anew by each relay that takes the unit.", position},
		{"notifyd_position_unowned", "1 while no relay holds the unit of a destination of this relay, as the tables tell: nothing is delivered to it.", position},
		{"notifyd_bell_awake", "1 while the relay keeps the bell silent and sweeps.", nil},
		{"notifyd_bell_mode", "1 for the mode that the bell is in: asleep (writers notify), awake (they are silent, the relay sweeps), ringing and drowsy (on the way from awake to asleep).", []string{"mode"}},
		{"notifyd_listener_connected", "1 while notifications are heard, as far as is known.", nil},
		{"notifyd_listener_proof_age_seconds", "How long ago it was proven that notifications are heard: a canary came back. It grows while the relay sweeps, when nothing depends on it; absent before the first proof.", nil},
		{"notifyd_listener_lost_total", "Listening connections that were lost, or given up because a canary was not heard.", nil},
		{"notifyd_canary_round_trip_seconds", "How long the last canary took from being sent to being heard; absent before the first.", nil},
		{"notifyd_canaries_total", "Notifications that the relay sent itself for proof.", nil},
		{"notifyd_canary_failures_total", "Canaries that failed: unheard (in time), unsent.", []string{"reason"}},
		{"notifyd_database_up", "1 while the database answers.", nil},
		{"notifyd_connections", "Open connections to the database, by role; pool is that of the program, the others are the relay's own.", []string{"role"}},
		{"notifyd_connections_opened_total", "Connections to the database that were opened.", []string{"role"}},
		{"notifyd_delayed_events", "Events that wait for their available_at; 10000 stands for all that is more. Absent while the database does not answer, as all that is counted in the tables.", nil},
		{"notifyd_oldest_waiting_seconds", "How long the event has waited that has waited longest; absent while the database does not answer.", nil},
	}
}
