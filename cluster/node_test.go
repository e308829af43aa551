package cluster_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/pannier/pannier/cluster"
	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/cluster/clustertest"
	"github.com/pannier/pannier/cluster/command"
	"github.com/pannier/pannier/cluster/state"
)

func volume(id string, modes ...claim.AccessMode) claim.Volume {
	if len(modes) == 0 {
		modes = []claim.AccessMode{claim.SingleNodeWriter}
	}
	v := claim.Volume{
		VolumeRef: claim.VolumeRef{Namespace: "default", ID: id}, PluginID: "hostpath", ExternalID: "ext-" + id,
	}
	for _, m := range modes {
		v.Capabilities = append(v.Capabilities, claim.Capability{AccessMode: m, AttachmentMode: claim.FileSystem})
	}
	return v
}

func workload(id string) claim.WorkloadRef { return claim.WorkloadRef{Namespace: "default", ID: id} }

func want(v claim.Volume, mode claim.Mode) claim.Claim {
	return claim.Claim{
		Volume: v.VolumeRef, Mode: mode,
		AccessMode: v.Capabilities[0].AccessMode, AttachmentMode: v.Capabilities[0].AttachmentMode,
	}
}

func TestLifeOfAClaim(t *testing.T) {
	s := clustertest.Start(t)
	ctx := t.Context()
	v := volume("mysql")
	if _, err := s.RegisterVolume(ctx, v); err != nil {
		t.Fatal(err)
	}
	started, err := s.StartWorkload(ctx, workload("db-1"), "a", []claim.Claim{want(v, claim.Write)})
	if err != nil {
		t.Fatal(err)
	}
	if started.Volumes[0].ExternalID != "ext-mysql" || started.Volumes[0].AccessMode != claim.SingleNodeWriter {
		t.Errorf("the claim came with the volume %+v", started.Volumes[0])
	}
	_, err = s.StartWorkload(ctx, workload("db-2"), "a", []claim.Claim{want(v, claim.Write)})
	text := `volume "mysql" has no write claim left: held by workload "db-1" on node "a" (write, taken, 0s)`
	if !errors.Is(err, cluster.ErrHeld) || err.Error() != text {
		t.Errorf("got %v, want %s", err, text)
	}
	if _, err := s.DeregisterVolume(ctx, v.VolumeRef, false); !errors.Is(err, cluster.ErrVolumeInUse) {
		t.Errorf("deregister with a claim: %v", err)
	}
	ended, err := s.EndWorkload(ctx, workload("db-1"))
	if err != nil || len(ended.Claims) != 1 || ended.Claims[0].State != claim.Unpublishing {
		t.Fatalf("end: %+v, %v", ended, err)
	}
	for _, to := range []claim.State{claim.NodeDetached, claim.ReadyToFree, claim.Freed, claim.Freed} {
		item := command.Advance{Volume: v.VolumeRef, Workload: workload("db-1"), Index: started.Claims[0].Index, To: to}
		if _, err := s.AdvanceClaims(ctx, "", item); err != nil {
			t.Fatalf("advance to %s: %v", to, err)
		}
	}
	s.Restart(t)
	err = s.Read(ctx, func(tx *state.ReadTx) error {
		got, err := tx.Volume(v.VolumeRef)
		if err == nil && got.AccessMode != "" {
			err = fmt.Errorf("the volume is still in use as %s", got.AccessMode)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.DeregisterVolume(ctx, v.VolumeRef, false); err != nil {
		t.Fatal(err)
	}
}

func TestStartIsQuick(t *testing.T) {
	s := clustertest.Start(t)
	begin := time.Now()
	s.Restart(t)
	t.Logf("close and open took %s", time.Since(begin))
}
