package testhost

import (
	"context"
	"fmt"
	"testing"

	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
)

// Soon bounds a call that must be answered.
func Soon(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), Wait)
	t.Cleanup(cancel)
	return ctx
}

// Volume reads a volume of the default namespace.
func (h *Host) Volume(id string) *hostv1.Volume {
	h.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), Wait)
	defer cancel()
	res, err := h.Client().Volumes.GetVolume(ctx, &hostv1.GetVolumeRequest{Namespace: "default", Id: id})
	if err != nil {
		h.t.Fatalf("read volume %q: %v\n%s", id, err, h.LogTail())
	}
	return res.GetVolume()
}

// Claims returns the claims of a volume of the default namespace.
func (h *Host) Claims(volume string) []*hostv1.Claim {
	h.t.Helper()
	return h.Volume(volume).GetClaims()
}

// Holder returns who has the only claim of a volume.
func (h *Host) Holder(volume string) *hostv1.Claim {
	h.t.Helper()
	claims := h.Claims(volume)
	if len(claims) != 1 || claims[0].GetState() != "taken" {
		h.t.Fatalf("volume %q has the claims %v, want one that is taken", volume, claims)
	}
	return claims[0]
}

// AwaitFree waits until the volumes have no claims.
func (h *Host) AwaitFree(volumes ...string) {
	h.t.Helper()
	for _, v := range volumes {
		h.Eventually("volume "+v+" is free", func() error {
			if claims := h.Claims(v); len(claims) > 0 {
				return fmt.Errorf("it has the claims %v", claims)
			}
			return nil
		})
	}
}

// Node reads a node's record in the ledger.
func (h *Host) Node(name string) (*hostv1.GetNodeResponse, error) {
	h.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), Wait)
	defer cancel()
	return h.Client().Nodes.GetNode(ctx, &hostv1.GetNodeRequest{Name: name})
}

// AwaitNode waits until a node has a status.
func (h *Host) AwaitNode(name, status string) {
	h.t.Helper()
	h.Eventually("node "+name+" is "+status, func() error {
		n, err := h.Node(name)
		if err != nil {
			return err
		}
		if got := n.GetNode().GetStatus(); got != status {
			return fmt.Errorf("it is %s", got)
		}
		return nil
	})
}
