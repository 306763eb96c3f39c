package mqtt_test

import (
	"fmt"

	"github.com/notifyd/notifyd/handlers"
	"github.com/notifyd/notifyd/handlers/mqtt"
)

// A topic per aggregate, on a broker with TLS.
func ExampleNew() {
	h, err := mqtt.New(mqtt.Config{
		Servers:  []string{"mqtts://mqtt.example.com"},
		Username: "shop",
		Password: handlers.NewSecret("secret"),
		Topic:    "orders/{{ .Event.AggregateID }}",
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer h.Close() //nolint:errcheck // always nil
	tested, _ := h.DescribeCheck()
	fmt.Println("doctor tests", tested)
	// Output: doctor tests the connection, the credentials if there are any, and that the broker takes QoS 1 and, with retain, retained messages
}
