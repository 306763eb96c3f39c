// Package handlertest is what every destination of notifyd has to pass, and what
// you can run on a handler of your own:
//
//	func TestWarehouse(t *testing.T) {
//		server := startWarehouse(t)
//		proxy := faultproxy.Start(t, server.Addr())
//		handlertest.Run(t, handlertest.Destination{
//			Open:     func(tb testing.TB) delivery.Handler { return newWarehouse(tb, proxy.Addr()) },
//			Received: func(testing.TB) []int64 { return server.IDs() },
//			Network:  proxy,
//		})
//	}
//
// Each property is a subtest. One that needs what the Destination does not
// offer is skipped and says what is missing.
//
// The package imports the standard library and package delivery.
package handlertest
