package clusterbench

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/pannier/pannier/cluster"
	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/cluster/command"
	"github.com/pannier/pannier/test/bench/table"
	"github.com/pannier/pannier/test/lib/check"
	"github.com/pannier/pannier/test/lib/clustertest"
)

const manyClaims = 100_000

// measureLedger gives three servers a ledger with 100,000 volumes and as many claims, copies the ledger, and
// lets a fourth server with an empty disk catch up.
func measureLedger(b *testing.B, r *table.Section) {
	backup := manyClaimed(b)
	s := form(b, "")
	h := s.all[0]
	restored := took(h, "operator", "snapshot", "restore", "-yes", h.Write("mh.snapshot", string(backup)))
	s.awaitVoters(b)
	saved := took(h, "operator", "snapshot", "save", h.Path("again.snapshot"))
	fourth := s.add(b, "server-4")
	at := time.Now()
	fourth.Launch()
	caughtUp := time.Since(at)
	s.awaitVoters(b)
	r.Add(
		table.Row{What: "`operator snapshot save`", Value: saved.Seconds(), Unit: "s", AtMost: 10},
		table.Row{What: "`operator snapshot restore`", Value: restored.Seconds(), Unit: "s", AtMost: 10},
		table.Row{
			What: "exec of a fourth server with an empty disk → it has caught up", Value: caughtUp.Seconds(),
			Unit: "s", AtMost: 10,
		},
	)
}

// took returns how long a command takes until it succeeds. On a busy machine the leader may change before.
func took(h *server, args ...string) (took time.Duration) {
	h.Eventually("pannier "+strings.Join(args, " "), func() error {
		at := time.Now()
		result := h.Try(args...)
		took = time.Since(at)
		if result.Code != 0 {
			return errors.New(result.Stderr)
		}
		return nil
	})
	return took
}

// manyClaimed returns a backup of a ledger with that many volumes and claims.
func manyClaimed(b *testing.B) []byte {
	b.Helper()
	n := clustertest.Start(b)
	ctx, cancel := context.WithTimeout(b.Context(), 10*patience)
	defer cancel()
	err := parallel(manyClaims, registering, func(i int) error {
		_, err := cluster.Apply(ctx, n, &command.RegisterVolume{Volume: volume(i, "shared")})
		if err != nil {
			return err
		}
		_, err = cluster.Apply(ctx, n,
			command.Start(claim.Run{Ref: workloadRef(i), Node: "node-1"}, []claim.Claim{wanted(i)}))
		return err
	})
	check.NoError(b, err)
	var backup bytes.Buffer
	if _, err := n.Save(ctx, &backup); err != nil {
		b.Fatal(err)
	}
	return backup.Bytes()
}
