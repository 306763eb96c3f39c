package delivery

import "context"

// HandleJSON returns a [Handler] that decodes the payload of each event into a T, as [Event.DecodeJSON] does, and calls f with it. f
// returns what Deliver returns, and may be called from several goroutines at once. A payload that is not JSON, or does not fit a T,
// is [Permanent]: the event becomes a dead letter at once. Fields that T does not have are ignored, and a pointer is nil
// for a payload of null.
func HandleJSON[T any](f func(ctx context.Context, e *Event, payload T) error) Handler {
	return HandlerFunc(func(ctx context.Context, e *Event) error {
		var payload T
		if err := e.DecodeJSON(&payload); err != nil {
			return err
		}
		return f(ctx, e, payload)
	})
}
