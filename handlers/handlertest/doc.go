// Package handlertest is the suite that every destination of notifyd has to pass. Run
// it on a handler of your own:
//
//	func TestWarehouse(t *testing.T) {
//		server := startWarehouse(t)
//		proxy := handlertest.StartProxy(t, server.Addr())
//		handlertest.Run(t, handlertest.Destination{
//			Open:     func(tb testing.TB) delivery.Handler { return newWarehouse(tb, proxy.Addr()) },
//			Received: func(testing.TB) []int64 { return server.IDs() },
//			Network:  proxy,
//		})
//	}
//
// Each property is a subtest. A property that the Destination lacks the means for is
// skipped, and the skip names them.
//
// The package needs no other module.
package handlertest
