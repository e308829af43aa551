package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"time"

	"github.com/spf13/pflag"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/pannier/pannier/cluster/backup"
	"github.com/pannier/pannier/internal/atomicfile"
	escape "github.com/pannier/pannier/internal/printable"
	"github.com/pannier/pannier/sdk/api"
	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
)

func operatorNoun() noun {
	return nounOf("operator", "The cluster's servers", archiveVerbs(),
		nounOf("raft", "Servers that take part in raft", raftVerbs()),
		nounOf("autopilot", "Automatic maintenance of servers by the leader", autopilotVerbs()),
		nounOf("snapshot", "Copies of the ledger", ledgerVerbs()),
		nounOf("secrets", "The keys that encrypt secrets in the ledger", secretsVerbs()))
}

func raftVerbs() []verb {
	return []verb{
		{
			use: "list-peers", short: "List the servers that take part in raft",
			run: func(ctx context.Context, c *call) error {
				resp, err := c.Operator.ListPeers(ctx, &hostv1.ListPeersRequest{})
				return c.Tables(resp, err, peerTable(resp.GetPeers()))
			},
		},
		{
			use: "transfer-leadership [NAME]", short: "Make another server the leader: NAME, or one that is up to date",
			example: "server-2",
			run: func(ctx context.Context, c *call) error {
				resp, err := c.Operator.TransferLeadership(ctx, &hostv1.TransferLeadershipRequest{Name: c.arg(0)})
				if resp.GetLeader() == "" {
					return c.Done(resp, err, "leadership is transferred; pannier operator raft list-peers shows to whom")
				}
				return c.Done(resp, err, "server %q leads", resp.GetLeader())
			},
		},
		{
			use: "remove-peer NAME", short: "Remove a server from raft that is gone for good", example: "server-3",
			long: `Remove a server from raft that is gone for good. One that still runs leaves by itself:
pannier agent leave, on it.`,
			run: order("server %q is removed from raft", func(ctx context.Context, c *call) (any, error) {
				return c.Operator.RemovePeer(ctx, &hostv1.RemovePeerRequest{Name: c.args[0]})
			}),
		},
	}
}

func peerTable(peers []*hostv1.RaftPeer) *Table {
	t := NewTable("NAME", "ADDRESS", "STATE", "VOTER", "HEALTH", "LAST CONTACT", "LAST INDEX", "VERSION")
	for _, p := range peers {
		state, contact := "follower", ""
		if p.GetLeader() {
			state = "leader"
		}
		if p.GetLastContact() != nil {
			contact = p.GetLastContact().AsDuration().Round(time.Millisecond).String()
		}
		t.Row(p.GetName(), p.GetAddress(), state, yesNo(p.GetVoter()), healthy(p.GetHealthy()), contact, p.GetLastIndex(),
			p.GetVersion())
	}
	return t
}

func autopilotVerbs() []verb {
	var given *pflag.FlagSet
	var cleanup bool
	var contact, stabilization time.Duration
	var quorum uint32
	return []verb{
		{
			use: "get", short: "Show the settings of autopilot",
			run: func(ctx context.Context, c *call) error {
				resp, err := c.Operator.GetAutopilot(ctx, &hostv1.GetAutopilotRequest{})
				return c.Tables(resp, err, autopilotTable(resp.GetAutopilot()))
			},
		},
		{
			use: "set", short: "Change the settings of autopilot, for all servers",
			long: `Change the settings of autopilot, for all servers. From the first change on the ledger has
them, and the autopilot blocks of configurations no longer count.`,
			example: "-last-contact-threshold 500ms",
			flags: func(f *pflag.FlagSet) {
				given = f
				f.BoolVar(&cleanup, "cleanup-dead-servers", true, "remove servers that do not answer")
				f.DurationVar(&contact, "last-contact-threshold", 0, "how long a healthy server may be silent")
				f.DurationVar(&stabilization, "server-stabilization-time", 0, "how long a server is healthy before it votes")
				f.Uint32Var(&quorum, "min-quorum", 0, "the least number of voters to keep; 0: as many as formed the cluster")
			},
			run: func(ctx context.Context, c *call) error {
				want := &hostv1.Autopilot{}
				if given.Changed("cleanup-dead-servers") {
					want.CleanupDeadServers = &cleanup
				}
				if given.Changed("last-contact-threshold") {
					want.LastContactThreshold = durationpb.New(contact)
				}
				if given.Changed("server-stabilization-time") {
					want.ServerStabilizationTime = durationpb.New(stabilization)
				}
				if given.Changed("min-quorum") {
					want.MinQuorum = &quorum
				}
				if proto.Equal(want, &hostv1.Autopilot{}) {
					return Usage("give at least one setting to change")
				}
				resp, err := c.Operator.SetAutopilot(ctx, &hostv1.SetAutopilotRequest{Autopilot: want})
				return c.Tables(resp, err, autopilotTable(resp.GetAutopilot()))
			},
		},
		{
			use: "health", short: "Show the health of the servers, and how many more may fail",
			long: `Show the health of the servers, and how many more may fail. The exit code is 1 when one is
unhealthy or does not vote yet.`,
			run: func(ctx context.Context, c *call) error {
				resp, err := c.Operator.AutopilotHealth(ctx, &hostv1.AutopilotHealthRequest{})
				err = c.Print(resp, err, func() {
					c.Show(peerTable(resp.GetPeers()))
					c.heading("")
					c.Say("%s may fail before the ledger stops", escape.Count(resp.GetFailureTolerance(), "more server"))
					for _, p := range resp.GetPeers() {
						if p.GetHealthy() && !p.GetVoter() {
							c.Say("server %q does not vote yet: it gets its vote when it has been healthy for server_stabilization_time",
								p.GetName())
						}
					}
				})
				if err == nil {
					err = oneCluster(ctx, c)
				}
				if err == nil && !resp.GetHealthy() {
					return silentExit(ExitError)
				}
				return err
			},
		},
	}
}

func autopilotTable(p *hostv1.Autopilot) *Table {
	t := NewTable()
	t.Row("Cleans up dead servers", yesNo(p.GetCleanupDeadServers()))
	t.Row("Healthy with a contact within", p.GetLastContactThreshold().AsDuration())
	t.Row("Votes when healthy for", p.GetServerStabilizationTime().AsDuration())
	quorum := fmt.Sprint(p.GetMinQuorum())
	if p.GetMinQuorum() == 0 {
		quorum = "as many as formed the cluster"
	}
	t.Row("Leaves voters at least", quorum)
	return t
}

func secretsVerbs() []verb {
	return []verb{
		{
			use: "status", short: "List the keys that encrypt secrets in the ledger",
			long: `List the keys that encrypt secrets in the ledger, how many records need each, and whether
the leader has it.`,
			run: func(ctx context.Context, c *call) error {
				resp, err := c.Secrets.GetSecretsStatus(ctx, &hostv1.GetSecretsStatusRequest{})
				return c.Print(resp, err, func() {
					c.Show(secretsTable(resp.GetKeys()))
					if resp.GetProblem() != "" {
						c.Say("%s", resp.GetProblem())
					}
				})
			},
		},
		{
			use: "rotate", short: "Rotate the key and re-encrypt secrets",
			long: `Rotate the key and re-encrypt secrets. Every server gets the new key, which is used from
then on; secrets are re-encrypted in the background, and then the old key is removed.
Refused while a server does not answer.`,
			run: func(ctx context.Context, c *call) error {
				resp, err := c.Secrets.RotateSecretsKey(ctx, &hostv1.RotateSecretsKeyRequest{})
				return c.Done(resp, err, "secrets are encrypted with key %s from now on; the old key is removed when nothing needs it "+
					"(pannier operator secrets status). Back up the servers' keys again: a backup of the ledger is of no use without them",
					resp.GetId())
			},
		},
	}
}

func secretsTable(keys []*hostv1.SecretsKey) *Table {
	t := NewTable("KEY", "STATE", "SEALED", "ADDED", "HERE")
	state := "old"
	for _, k := range keys {
		if k.GetActive() {
			state = "active"
		}
		t.Row(k.GetId(), state, k.GetSealed(), age(k.GetAddedAt()), yesNo(k.GetHere()))
		if k.GetActive() {
			state = "next"
		}
	}
	return t
}

func systemNoun() noun {
	req := &hostv1.CollectGarbageRequest{}
	return nounOf("system", "Maintenance of the ledger", []verb{{
		use: "gc", short: "Collect garbage now", example: "-dry-run",
		long: `Collect garbage now: claims of workloads that have ended,
ended workloads, drivers that no node has, nodes that are down and hold nothing, expired
ACL tokens. The leader does so periodically (gc in the agent's configuration); what is
not old enough stays.`,
		flags: func(f *pflag.FlagSet) { f.BoolVar(&req.DryRun, "dry-run", false, "only show what would be removed") },
		run: func(ctx context.Context, c *call) error {
			resp, err := c.System.CollectGarbage(ctx, req)
			return list(c.Printer, resp, err, resp.GetGarbage(), columns[*hostv1.Garbage]{
				[]string{"KIND", "NAMESPACE", "ID", "SINCE", "REASON"},
				func(t *Table, g *hostv1.Garbage) {
					t.Row(g.GetKind(), g.GetNamespace(), g.GetId(), since(g.GetSince()), g.GetReason())
				},
				"nothing to collect",
			})
		},
	}})
}

// chunkSize is the size of a snapshot's chunk in one message, in bytes.
const chunkSize = 256 << 10

// ledgerVerbs save, restore and inspect copies of the ledger.
func ledgerVerbs() []verb {
	return []verb{
		{
			use: "save FILE", short: "Write a copy of the ledger to a new file",
			long: `Write a copy of the ledger to a new file, which only you can read. Secrets in it are
encrypted. Needs a management token when ACLs are on.`,
			example: `"ledger-$(date +%F).snapshot"`,
			run: func(ctx context.Context, c *call) error {
				var info *hostv1.SnapshotInfo
				err := atomicfile.Create(c.args[0], func(f *os.File) (err error) {
					info, err = copySnapshot(ctx, c, f)
					return err
				})
				err = exists(err, c.args[0], "name another file")
				return c.Done(info, err, "wrote %s: the ledger at index %d, %s", c.args[0], info.GetIndex(), size(info.GetSize()))
			},
		},
		{
			use: "restore FILE", short: "Replace the ledger by a copy, on every server", example: "ledger.snapshot",
			long: `Replace the ledger by a copy, on every server. The copy is checked first. Everything
that changed after it was made is lost. Refused while there are claims. It asks first, or needs -yes.`,
			danger: &danger{
				concerns: describeSnapshot,
				risk:     "everything in the ledger that changed after %[1]s was written is lost, on every server",
			},
			run: restoreSnapshot,
		},
		{
			use: "inspect FILE", short: "Check a copy of the ledger and describe it; needs no agent", example: "ledger.snapshot",
			local: func(_ context.Context, c *call) error {
				f, info, err := openSnapshot(c.args[0])
				if err != nil {
					return err
				}
				if err := f.Close(); err != nil {
					return err
				}
				t := NewTable()
				t.Row("Cluster", info.Cluster)
				t.Row("Server", info.Server)
				t.Row("Created", info.CreatedAt.Local().Format(time.DateTime))
				t.Row("Index", info.Index)
				t.Row("Term", info.Term)
				t.Row("Size", size(info.Size))
				t.Row("SHA-256", info.SHA256)
				return c.Tables(&hostv1.SnapshotInfo{
					Index: info.Index, Term: info.Term, Size: info.Size, Checksum: info.SHA256,
					CreatedAt: timestamppb.New(info.CreatedAt), Cluster: info.Cluster, Server: info.Server,
				}, nil, t)
			},
		},
	}
}

// copySnapshot writes a copy of the ledger to a file, and checks it.
func copySnapshot(ctx context.Context, c *call, f *os.File) (info *hostv1.SnapshotInfo, err error) {
	defer c.announceCall(ctx, "SaveSnapshot")()
	stream, err := c.Operator.SaveSnapshot(ctx, &hostv1.SaveSnapshotRequest{})
	if err != nil {
		return nil, err
	}
	defer stream.Close()
	for stream.Receive() {
		if info = stream.Msg().GetSnapshot(); info != nil {
			break
		}
		if _, err := f.Write(stream.Msg().GetChunk()); err != nil {
			return nil, err
		}
	}
	if err := stream.Err(); err != nil {
		return nil, err
	}
	if info == nil {
		return nil, errors.New("the snapshot was cut off: try again")
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return nil, err
	}
	if _, err := backup.Inspect(f); err != nil {
		return nil, fmt.Errorf("the written file is not a snapshot: %w", err)
	}
	return info, nil
}

// describeSnapshot describes what replaces the ledger.
func describeSnapshot(_ context.Context, c *call) ([]string, error) {
	f, info, err := openSnapshot(c.args[0])
	if err != nil {
		return nil, err
	}
	return []string{fmt.Sprintf("cluster %s gets back its ledger of %s, at index %d", info.Cluster,
		info.CreatedAt.Local().Format(time.DateTime), info.Index)}, f.Close()
}

func restoreSnapshot(ctx context.Context, c *call) error {
	done := c.announceCall(ctx, "RestoreSnapshot")
	resp, err := sendSnapshot(ctx, c.Client, c.args[0])
	done()
	return c.Done(resp, err, "restored the ledger from %s, at index %d", c.args[0], resp.GetSnapshot().GetIndex())
}

// sendSnapshot replaces the ledger by the copy in a file.
func sendSnapshot(ctx context.Context, client *api.Client, path string) (*hostv1.RestoreSnapshotResponse, error) {
	f, _, err := openSnapshot(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	stream, err := client.Operator.RestoreSnapshot(ctx)
	if err != nil {
		return nil, err
	}
	for chunk := make([]byte, chunkSize); ; {
		n, err := f.Read(chunk)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("read %s: %w", path, err)
		}
		// The answer has the reason.
		if err := stream.Send(&hostv1.RestoreSnapshotRequest{Chunk: chunk[:n]}); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, err
		}
	}
	return stream.CloseAndReceive()
}

// openSnapshot opens a file and checks that it is a complete snapshot.
func openSnapshot(path string) (*os.File, backup.Backup, error) {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, backup.Backup{}, Coded(ExitNotFound, err)
	}
	if err != nil {
		return nil, backup.Backup{}, err
	}
	info, err := backup.Inspect(f)
	if err == nil {
		_, err = f.Seek(0, io.SeekStart)
	}
	if err != nil {
		return nil, info, errors.Join(Coded(ExitUsage, fmt.Errorf("%s: %w", path, err)), f.Close())
	}
	return f, info, nil
}
