package cluster_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
	"github.com/pannier/pannier/test/lib/testcluster"
	"github.com/pannier/pannier/test/lib/testhost"
	"github.com/pannier/pannier/test/lib/testns"
)

func TestMain(m *testing.M) { testns.Main(m, 3) }

// launch starts hosts, all at once, and waits until each is ready and its drivers are healthy.
func launch(hosts ...*testhost.Host) {
	for _, h := range hosts {
		h.Begin()
	}
	for _, h := range hosts {
		h.AwaitReady()
		h.AwaitDrivers()
	}
}

// crash ends all processes of a host, as a power loss would; its mounts stay.
func crash(t *testing.T, h *testhost.Host) {
	t.Helper()
	h.Kill()
	h.Eventually("its processes have ended", func() error {
		left := h.Processes()
		for _, pid := range left {
			if err := unix.Kill(pid, unix.SIGKILL); err != nil && !errors.Is(err, unix.ESRCH) {
				return err
			}
		}
		if len(left) > 0 {
			return fmt.Errorf("processes %v", left)
		}
		return nil
	})
}

// lead makes a server the leader, by a command to itself.
func lead(c *testcluster.Cluster, name string) { leadThrough(c, c.Host(name), name) }

// leadThrough makes a server the leader. Raft allows one second for a transfer, which may be too short on a
// busy machine, so the command is repeated.
func leadThrough(c *testcluster.Cluster, through *testhost.Host, name string) {
	through.Eventually(name+" leads", func() error {
		r := through.Try("operator", "raft", "transfer-leadership", name)
		if now := c.Leader().Name; now != name {
			return fmt.Errorf("%s leads; %s%s", now, r.Stdout, r.Stderr)
		}
		return nil
	})
}

// peers returns raft's servers, as the leader reports them to a host.
func peers(t *testing.T, through *testhost.Host) ([]*hostv1.RaftPeer, error) {
	t.Helper()
	resp, err := through.Client().Operator.ListPeers(testhost.Soon(t), &hostv1.ListPeersRequest{})
	if err != nil {
		return nil, err
	}
	return resp.GetPeers(), nil
}

// awaitVoters waits until raft's servers are exactly the named ones, all of them healthy voters.
func awaitVoters(t *testing.T, through *testhost.Host, names ...string) {
	t.Helper()
	through.Eventually("the voters are "+strings.Join(names, ", "), func() error {
		all, err := peers(t, through)
		if err != nil {
			return err
		}
		var voters []string
		for _, p := range all {
			if p.GetVoter() && p.GetHealthy() {
				voters = append(voters, p.GetName())
			}
		}
		if slices.Sort(voters); len(all) != len(names) || !slices.Equal(voters, names) {
			return fmt.Errorf("they are %v", all)
		}
		return nil
	})
}

// awaitMember waits until another agent sees a member with a certain status in the gossip.
func awaitMember(t *testing.T, through *testhost.Host, name, status string) {
	t.Helper()
	through.Eventually(name+" is "+status, func() error {
		if row := table(through.Run("server", "members"))[name]; len(row) < 3 || row[2] != status {
			return fmt.Errorf("it is %q", row)
		}
		return nil
	})
}

// start starts a workload with volumes of the cluster.
func start(c *testcluster.Cluster, on *testhost.Host, id string, volumes ...string) {
	on.Run("workload", "start", c.Workload(on, id, volumes...))
}

// begin runs a command of the CLI in the background.
func begin(t *testing.T, on *testhost.Host, args ...string) (ended chan error) {
	t.Helper()
	cmd := on.Command(args...)
	var said strings.Builder
	cmd.Stdout, cmd.Stderr = &said, &said
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended = make(chan error, 1)
	over := make(chan struct{})
	go func() {
		defer close(over)
		err := cmd.Wait()
		if err != nil {
			err = fmt.Errorf("%w: %s", err, said.String())
		}
		ended <- err
	}()
	t.Cleanup(func() { _ = cmd.Process.Kill(); <-over })
	return ended
}

// outcome waits for a background command to end, and returns its error.
func outcome(t *testing.T, ended chan error) error {
	t.Helper()
	select {
	case err := <-ended:
		return err
	case <-time.After(testhost.Wait):
		t.Fatalf("a command has not ended within %s", testhost.Wait)
		return nil
	}
}

// program is a workload that runs in the foreground.
type program struct {
	on    *testhost.Host
	id    string
	file  string // the file that it writes to, as seen on the storage
	out   strings.Builder
	cmd   *exec.Cmd
	ended chan struct{}
}

// run runs a program in the foreground that writes lines into a volume in a loop. It returns when the program
// has written the first line.
func run(t *testing.T, c *testcluster.Cluster, on *testhost.Host, id, volume string) *program {
	t.Helper()
	p := &program{
		on: on, id: id, ended: make(chan struct{}),
		file: filepath.Join(c.Data(on, volume), "writes"),
	}
	const script = `while echo "$0" >>"$1"; do sleep 0.1; done`
	cmd := on.Command("workload", "run", c.Workload(on, id, volume), "--", "sh", "-c", script, id,
		"/srv/"+volume+"/writes")
	cmd.Stdout, cmd.Stderr = &p.out, &p.out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p.cmd = cmd
	go func() { _ = cmd.Wait(); close(p.ended) }()
	t.Cleanup(func() { _ = cmd.Process.Kill(); <-p.ended })
	p.writesOn(t)
	return p
}

// writesOn waits until the program has written another line.
func (p *program) writesOn(t *testing.T) {
	t.Helper()
	size := func() int64 {
		info, err := os.Stat(p.file)
		if err != nil {
			return 0
		}
		return info.Size()
	}
	before := size()
	p.on.Eventually("workload "+p.id+" writes", func() error {
		select {
		case <-p.ended:
			events := p.on.Try("events", "-since", "10m", "-topic", "workload")
			t.Fatalf("workload %s ended: %v: %s\n%s", p.id, p.cmd.ProcessState, p.out.String(), events.Stdout)
		default:
		}
		if size() <= before {
			return errors.New("it has written nothing")
		}
		return nil
	})
}

// done is one line of the driver's log.
type done struct{ node, what, volume, where string }

// driverLog returns the operations of the drivers on all hosts with a volume, in order; with an empty id,
// those with any volume.
func driverLog(t *testing.T, c *testcluster.Cluster, volume string) (all []done) {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(c.Volumes, ".log"))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(raw)) {
		words := strings.Fields(line)
		if len(words) != 5 {
			t.Fatalf("the driver wrote %q", line)
		}
		if volume == "" || strings.HasPrefix(words[3], "default-"+volume+"-") {
			all = append(all, done{words[1], words[2], words[3], words[4]})
		}
	}
	return all
}

// held waits until Hold blocks a driver's call, and returns the host of that driver.
func held(t *testing.T, c *testcluster.Cluster) (on *testhost.Host) {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Stat(filepath.Join(c.Volumes, ".lock"), &st); err != nil {
		t.Fatal(err)
	}
	c.Hosts[0].Eventually("a driver's call is under way", func() error {
		locks, err := os.ReadFile("/proc/locks") // proc_locks(5)
		if err != nil {
			return err
		}
		for line := range strings.Lines(string(locks)) {
			words := strings.Fields(line)
			if len(words) < 7 || words[1] != "->" || !strings.HasSuffix(words[6], fmt.Sprintf(":%d", st.Ino)) {
				continue
			}
			pid, err := strconv.Atoi(words[5])
			if err != nil {
				return err
			}
			for _, h := range c.Hosts {
				if slices.Contains(h.Processes(), pid) {
					on = h
					return nil
				}
			}
		}
		return fmt.Errorf("nobody waits in\n%s", locks)
	})
	return on
}

// rewrite changes a host's configuration for its next start.
func rewrite(t *testing.T, h *testhost.Host, old, with string) {
	t.Helper()
	raw, err := os.ReadFile(h.Path("agent.hcl"))
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(raw), old) {
		t.Fatalf("the configuration of %s has no %q:\n%s", h.Name, old, raw)
	}
	h.Write("agent.hcl", strings.Replace(string(raw), old, with, 1))
}
