package drivers

import (
	"context"
	"fmt"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pannier/pannier/sdk/storage"
)

type one Driver

func (o one) Get(string) (Driver, error) { return Driver(o), nil }
func (o one) Changed() <-chan struct{}   { return nil }

// TestACallIsNamedOnce: callers say what they tried, on which driver. What csi-bridge says of that is left out.
func TestACallIsNamedOnce(t *testing.T) {
	for text, want := range map[string]string{
		`stage volume "x" (external id "v") on driver "d": NodeStageVolume answered Internal: no disk`: "the driver answered Internal: no disk",
		`storage(csi-bridge): stage volume "x" on driver "d": it is slow: no disk`:                     "it is slow: no disk",
		`no disk: it is on driver "d": elsewhere`:                                                      `no disk: it is on driver "d": elsewhere`,
		`stage volume "x" on driver "other": no disk`:                                                  `stage volume "x" on driver "other": no disk`,
	} {
		c := Caller{
			Drivers: one{Spec: Spec{ID: "d"}, Healthy: true},
			Storage: func(context.Context, string, func(context.Context, storage.Client) error) error {
				return status.Error(codes.Internal, text)
			},
		}
		err := fmt.Errorf("tried: %w", c.Call(t.Context(), "d", 0, nil))
		if s, _ := status.FromError(err); err.Error() != "tried: "+want || s.Code() != codes.Internal || s.Message() != err.Error() {
			t.Errorf("got %v; %v", err, s)
		}
	}
}
