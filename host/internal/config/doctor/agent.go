package doctor

import (
	"context"
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"connectrpc.com/connect"

	"github.com/pannier/pannier/cluster/discovery"
	"github.com/pannier/pannier/internal/printable"
	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
)

// askAgent gets the agent's own view.
func (p *Patient) askAgent(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, checkPatience)
	defer cancel()
	p.status, p.statusErr = p.Client.Agent.Status(ctx, &hostv1.StatusRequest{})
}

// lastLines shows why an agent does not work, without asking it.
const lastLines = "journalctl -u pannier -n 20 --no-pager"

func (p *Patient) agent(context.Context) []Finding {
	switch s := p.status; {
	case s == nil && unanswered(p.statusErr):
		return one(Fail, fmt.Sprintf("it does not answer: %v", p.statusErr), lastLines)
	case s == nil && connect.CodeOf(p.statusErr) == connect.CodePermissionDenied:
		return one(Fail, fmt.Sprintf("its state cannot be read: %v", p.statusErr), "pannier acl token self")
	case s == nil:
		return one(Fail, fmt.Sprintf("its state cannot be read: %v", p.statusErr), lastLines)
	case !s.GetReady():
		return one(Fail, fmt.Sprintf("%s is not ready: %s", s.GetName(), s.GetMessage()), lastLines)
	default:
		return ok("%s is ready: version %s, process %d", s.GetName(), s.GetVersion(), s.GetPid())
	}
}

func (p *Patient) plugins(ctx context.Context) []Finding {
	var problems []Finding
	for _, plugin := range p.status.GetPlugins() {
		add := func(s Status, why, command string) {
			problems = append(problems, Finding{
				Status: s, Why: plugin.GetName() + ": " + why, Subject: plugin.GetName(), Command: command + " " + plugin.GetName(),
			})
		}
		broken := func(s Status, why, command string) {
			add(s, why, command)
			if mend := plugin.GetMend(); mend != "" {
				problems[len(problems)-1].Command = mend
			}
		}
		switch state := plugin.GetState(); {
		case plugin.GetDuplicateOf() != "":
			add(Warn, "it is another file of "+plugin.GetDuplicateOf()+", and does not run", "pannier plugin status")
			continue
		case state == "starting" && plugin.GetLastError() == "":
			// The supervisor ends a start that takes too long: the state is then another, with the error.
			add(Warn, "it is starting", "pannier plugin status")
		case state != "running":
			broken(Fail, strings.TrimSuffix(state+": "+plugin.GetLastError(), ": "), "pannier plugin logs")
		case plugin.GetDegraded() != "":
			add(Warn, plugin.GetDegraded(), "pannier plugin rollback")
		}
		if why := plugin.GetFileProblem(); why != "" {
			broken(Warn, why, "pannier plugin status")
		}
		for _, v := range plugin.GetVersions() { // what serves is not what is in the plugin directory
			switch {
			case v.GetFile() != "" && v.GetRefused() != "":
				add(Warn, v.GetFile()+" is refused: "+v.GetRefused(), "pannier plugin versions")
			case v.GetFile() != "" && v.GetWaits():
				add(Warn, v.GetFile()+" waits, because the plugin is pinned", "pannier plugin unpin")
			}
		}
		if why := plugin.GetConfigProblem(); why != "" {
			add(Warn, why, "pannier plugin status")
		}
		if at := plugin.GetDebuggedAt(); at != "" {
			add(Warn, "it is debugged: its calls go to "+at, "pannier plugin restart")
		}
	}
	if len(p.status.GetPlugins()) == 0 {
		if f := p.hidden(ctx); f != nil {
			return f
		}
		return one(Warn, "there are none", "pannier agent plugin install -h")
	}
	return or(problems, "%d, all serve", len(p.status.GetPlugins()))
}

// hidden returns why the agent's status shows neither plugins nor drivers to this caller; nil: it does.
func (p *Patient) hidden(ctx context.Context) []Finding {
	_, err := p.Client.Plugins.ListPlugins(ctx, &hostv1.ListPluginsRequest{})
	if err != nil {
		return unread(Fail, "they cannot be listed", err, "pannier plugin status")
	}
	return nil
}

func (p *Patient) drivers(ctx context.Context) []Finding {
	if len(p.status.GetDrivers()) == 0 {
		if f := p.hidden(ctx); f != nil {
			return f
		}
	}
	var problems []Finding
	look := func(d *hostv1.Driver) {
		name := d.GetId()
		if d.GetType() != "monolith" {
			name += " (" + d.GetType() + ")"
		}
		status := "pannier driver status " + d.GetId()
		add := func(s Status, why, command string) {
			problems = append(problems, Finding{Status: s, Why: name + why, Subject: d.GetId(), Command: command})
		}
		if !d.GetHealthy() {
			why := " is not healthy: " + d.GetMessage()
			if socket, local := strings.CutPrefix(d.GetEndpoint(), "unix://"); local && d.GetPid() == 0 {
				if _, err := os.Stat(socket); err != nil {
					why += fmt.Sprintf(": its socket: %v", err)
				}
			}
			add(Fail, why, status)
		}
		if why := d.GetProgramProblem(); why != "" {
			add(Warn, ": "+why, status)
		}
		if d.GetConfigurationWaits() {
			add(Warn, " has a changed configuration, which waits until it is not in use", "pannier driver restart "+d.GetId())
		}
	}
	here := 0
	for _, d := range p.status.GetDrivers() {
		if d.GetSource() == "" {
			continue // other nodes have it
		}
		here++
		look(d)
		if c := d.GetController(); c != nil {
			look(c)
		}
	}
	return or(problems, "%d, all healthy", here)
}

// leftovers are mounts without a journal's record, and records without their mount.
func (p *Patient) leftovers(ctx context.Context) []Finding {
	workloads, problems := p.workloads(ctx)
	for _, path := range p.status.GetLeftovers() {
		problems = append(problems, one(Warn, path+" belongs to no workload that the agent knows",
			"findmnt -R "+path+"  # then unmount it, or move it away")...)
	}
	for _, w := range workloads {
		if w.GetNode() != p.status.GetName() || w.GetState() != "running" {
			continue
		}
		for _, m := range w.GetMounts() {
			if path := m.GetHostPath(); path != "" && !slices.ContainsFunc(p.mounts, func(i *mountInfo) bool {
				return i.Mountpoint == path
			}) {
				problems = append(problems, one(Fail, fmt.Sprintf("workload %q runs, and its volume %q is not mounted at %s",
					w.GetSpec().GetId(), m.GetVolume(), path), "pannier workload stop "+w.GetSpec().GetId())...)
			}
		}
	}
	return or(problems, "they agree")
}

// workloads returns this node's workloads. If they cannot be listed, that is a finding.
func (p *Patient) workloads(ctx context.Context) ([]*hostv1.Workload, []Finding) {
	resp, err := p.Client.Workloads.ListWorkloads(ctx, &hostv1.ListWorkloadsRequest{})
	if err != nil {
		return nil, unread(Fail, "the workloads cannot be listed", err, "")
	}
	return resp.GetWorkloads(), nil
}

// services finds services of running workloads that are not in order, such as for their proxy.
func (p *Patient) services(ctx context.Context) []Finding {
	workloads, problems := p.workloads(ctx)
	for _, w := range workloads {
		if w.GetState() == "running" && w.GetMessage() != "" {
			problems = append(problems, one(Warn, fmt.Sprintf("workload %q: %s", w.GetSpec().GetId(), w.GetMessage()),
				"pannier workload status "+w.GetSpec().GetId())...)
		}
	}
	return or(problems, "all in order")
}

// binds are mounts that people have made of a published volume. Mounts of mount(8) belong to a workload of their own.
func (p *Patient) binds(ctx context.Context) []Finding {
	workloads, problems := p.workloads(ctx)
	for _, w := range workloads {
		if strings.HasPrefix(w.GetSpec().GetId(), mountedWorkload) {
			continue
		}
		for _, m := range w.GetMounts() {
			for _, path := range p.mounts.copies(m.GetHostPath(), p.dataDir()) {
				problems = append(problems, one(Warn, fmt.Sprintf("%s shows volume %q of workload %q: a stop of the workload waits"+
					" for it", path, m.GetVolume(), w.GetSpec().GetId()), "umount "+path+"  # or mount it there: docs/mount.md")...)
			}
		}
	}
	return or(problems, "none outside of %s", p.dataDir())
}

// mountedWorkload begins the ids of the workloads of mount(8).
const mountedWorkload = "mount."

// stuck is how long a release may be tried.
const stuck = time.Minute

func (p *Patient) releases(context.Context) []Finding {
	var problems []Finding
	for _, r := range p.status.GetReleases() {
		s := Warn
		if time.Since(r.GetSince().AsTime()) > stuck {
			s = Fail
		}
		command := r.GetCommand()
		if command == "" {
			command = "pannier workload status " + r.GetWorkload()
		}
		problems = append(problems, one(s, fmt.Sprintf("workload %q is not released since %s (%s): %s", r.GetWorkload(),
			r.GetSince().AsTime().Local().Format(time.DateTime), printable.Count(r.GetTries(), "attempt"), r.GetError()), command)...)
	}
	return or(problems, "none waits")
}

// udpPatience is how long the answer to a packet of gossip may take.
const udpPatience = time.Second

// OneCluster returns an error if the members that have not left belong to more than one cluster.
func OneCluster(members []*hostv1.Member) error {
	clusters := map[string][]string{}
	for _, m := range members {
		if m.GetCluster() != "" && m.GetStatus() != string(discovery.Left) {
			clusters[m.GetCluster()] = append(clusters[m.GetCluster()], m.GetName())
		}
	}
	if len(clusters) < 2 {
		return nil
	}
	var of []string
	for _, id := range slices.Sorted(maps.Keys(clusters)) {
		of = append(of, fmt.Sprintf("%s (%s)", id, strings.Join(clusters[id], ", ")))
	}
	return fmt.Errorf("the pool holds %d clusters, each with a ledger of its own: %s: on the agents of"+
		" all but one, stop the agent and move the ledger out of data_dir", len(clusters), strings.Join(of, "; "))
}

func (p *Patient) oneCluster(ctx context.Context) []Finding {
	resp, err := p.Client.Members.ListMembers(ctx, &hostv1.ListMembersRequest{})
	if err != nil {
		return unread(Fail, "the members cannot be listed", err, "pannier server members")
	}
	if err := OneCluster(resp.GetMembers()); err != nil {
		return one(Fail, err.Error(), "pannier server members")
	}
	return or(nil, "%s in the pool", printable.Count(len(resp.GetMembers()), "agent"))
}

// peers: gossip goes by UDP, and by TCP to the same port; calls by TCP.
func (p *Patient) peers(ctx context.Context) []Finding {
	resp, err := p.Client.Members.ListMembers(ctx, &hostv1.ListMembersRequest{})
	if err != nil {
		return unread(Fail, "the members cannot be listed", err, "pannier server members")
	}
	var problems []Finding
	reached := 0
	gossips := map[string]string{} // those that TCP reaches
	for _, m := range resp.GetMembers() {
		if m.GetName() == p.status.GetName() || m.GetStatus() == "left" {
			continue
		}
		if m.GetStatus() != "alive" {
			problems = append(problems, one(Fail, fmt.Sprintf("%s is %s: no gossip arrives from it (UDP and TCP %s)", m.GetName(),
				m.GetStatus(), m.GetAddress()), "pannier server members")...)
		}
		for _, port := range []struct{ what, address string }{{"gossip", m.GetAddress()}, {"calls", m.GetRpcAddress()}} {
			conn, err := (&net.Dialer{Timeout: time.Second}).DialContext(ctx, "tcp", port.address)
			if err != nil {
				problems = append(problems, one(Fail, fmt.Sprintf("%s cannot be reached for %s: %v", m.GetName(), port.what, err),
					"nc -vz "+strings.Replace(port.address, ":", " ", 1))...)
				continue
			}
			_ = conn.Close() // nothing was sent
			reached++
			if port.what == "gossip" {
				gossips[m.GetName()] = port.address
			}
		}
	}
	return or(append(problems, p.unheard(gossips)...), "%s of other agents reached", printable.Count(reached, "port"))
}

// unheard are the agents that can be reached by TCP and not by UDP: gossip then counts them as failed now and then.
func (p *Patient) unheard(members map[string]string) (problems []Finding) {
	if len(members) == 0 {
		return nil
	}
	key, err := p.Config.Gossip.Read()
	if err != nil {
		return one(Warn, fmt.Sprintf("gossip by UDP was not tried: %v", err), "")
	}
	silent, err := discovery.Unheard(discovery.Config{
		Self: discovery.Self{Name: p.status.GetName()}, Bind: p.Config.BindAddr, Advertise: p.Config.AdvertiseAddr,
		Key: string(key), KeyringFile: filepath.Join(p.dataDir(), "serf", "keyring"),
	}, members, udpPatience)
	if err != nil {
		return one(Warn, fmt.Sprintf("gossip by UDP was not tried: %v", err), "")
	}
	for _, name := range silent {
		problems = append(problems, one(Warn, fmt.Sprintf("%s cannot be reached by UDP at %s, which TCP reaches: let both"+
			" through, in both directions; until then others may count it as failed", name, members[name]),
			"nc -vzu "+strings.Replace(members[name], ":", " ", 1))...)
	}
	return problems
}

func (p *Patient) quorum(ctx context.Context) []Finding {
	health, err := p.Client.Operator.AutopilotHealth(ctx, &hostv1.AutopilotHealthRequest{})
	if err != nil {
		return unread(Fail, "the servers' health cannot be read", err, "pannier server members")
	}
	voters := 0
	var sick []string
	for _, peer := range health.GetPeers() {
		if peer.GetVoter() {
			voters++
		}
		if !peer.GetHealthy() {
			sick = append(sick, peer.GetName())
		}
	}
	say := fmt.Sprintf("%s, of which %d may fail", printable.Count(voters, "voting server"),
		health.GetFailureTolerance())
	switch {
	case len(sick) > 0:
		return one(Fail, fmt.Sprintf("%s; not healthy: %s", say, strings.Join(sick, ", ")), "pannier operator autopilot health")
	case health.GetFailureTolerance() == 0:
		return one(Warn, say+": the next failure stops new claims; a cluster should have three or five servers",
			"pannier operator autopilot health")
	default:
		return ok("%s", say)
	}
}

func (p *Patient) gossipKeys(ctx context.Context) []Finding {
	resp, err := p.Client.Members.ListKeys(ctx, &hostv1.ListKeysRequest{})
	if err != nil {
		return unread(Warn, "the keys cannot be listed", err, "pannier keyring list")
	}
	var problems []Finding
	for _, k := range resp.GetKeys() {
		if n := resp.GetAgents(); k.GetAgents() != n || k.GetPrimary() != 0 && k.GetPrimary() != n {
			problems = append(problems, one(Warn, fmt.Sprintf("%d of %d agents have the key %s, and %d encrypt with it: the others"+
				" may not hear them", k.GetAgents(), n, k.GetId(), k.GetPrimary()), "pannier keyring list")...)
		}
	}
	if why := resp.GetProblem(); why != "" {
		problems = append(problems, one(Warn, why, "pannier keyring list")...)
	}
	return or(problems, "%d, the same on %s", len(resp.GetKeys()), printable.Count(resp.GetAgents(), "agent"))
}

func (p *Patient) secretsKeys(ctx context.Context) []Finding {
	resp, err := p.Client.Secrets.GetSecretsStatus(ctx, &hostv1.GetSecretsStatusRequest{})
	if err != nil {
		return unread(Warn, "their state cannot be read", err, "pannier operator secrets status")
	}
	if why := resp.GetProblem(); why != "" {
		return one(Fail, why, "pannier operator secrets status")
	}
	var problems []Finding
	for _, k := range resp.GetKeys() {
		if !k.GetHere() {
			problems = append(problems, one(Fail, fmt.Sprintf("the server that answers lacks the key %s, needed by %s",
				k.GetId(), printable.Count(k.GetSealed(), "record")), "pannier operator secrets status")...)
		}
	}
	return or(problems, "%d, all there", len(resp.GetKeys()))
}
