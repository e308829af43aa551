package device_test

import (
	"context"
	"fmt"
	"log"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pannier/pannier/sdk"
	"github.com/pannier/pannier/sdk/device"
	"github.com/pannier/pannier/sdk/internal/inprocess"
)

// null is a plugin whose one device is /dev/null.
type null struct{}

func (null) Fingerprint(ctx context.Context, report func([]device.Group) error) error {
	group := device.Group{
		Vendor: "example", Type: "pseudo", Name: "null",
		Devices: []device.Instance{{ID: "null", Healthy: true}},
	}
	if err := report([]device.Group{group}); err != nil {
		return err
	}
	<-ctx.Done() // nothing changes
	return ctx.Err()
}

func (null) Reserve(_ context.Context, ids []string) (device.Reservation, error) {
	for _, id := range ids {
		if id != "null" {
			return device.Reservation{}, status.Errorf(codes.NotFound, "there is no device %q", id)
		}
	}
	return device.Reservation{Devices: []device.Node{{
		HostPath: "/dev/null", TaskPath: "/dev/null",
		Permissions: "rw",
	}}}, nil
}

// A plugin's main is sdk.Main(info, device.Plugin(null{})). Here it is served in the same process, and called as a host
// calls it.
func Example() {
	info := sdk.Info{Name: "null", Version: "1.0.0"}
	conn, stop, err := inprocess.Serve(info, device.Plugin(null{}))
	if err != nil {
		log.Fatal(err)
	}
	defer stop()
	host := device.NewClient(conn)

	reservation, err := host.Reserve(context.Background(), []string{"null"})
	fmt.Println(reservation.Devices, err)
	_, err = host.Reserve(context.Background(), []string{"zero"})
	fmt.Println(err)
	// Output:
	// [{/dev/null /dev/null rw}] <nil>
	// rpc error: code = NotFound desc = there is no device "zero"
}
