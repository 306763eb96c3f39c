// Package delivery is the contract between the relay and destinations: the package that the author
// of a destination reads, and the only one that a destination imports.
//
// A destination is a [Handler], or a [BatchHandler] if it takes several events in one
// call. The error that it returns says whose fault a failure is and what follows from it:
// [Permanent], [RetryAfter], [Unavailable] and [Throttled] mark it, [Unclear] marks a refusal that
// every event may get, and an unmarked error is tried again. What else a destination can do, it says by its methods: [Checker],
// [Previewer], [Sizer], [Reporter], which [As] finds behind [Middleware], and
// [OrderedBatchHandler], which asks [TotalOrder]. Package handlers/handlertest proves that a handler keeps the contract.
//
// The package imports only the standard library.
package delivery
