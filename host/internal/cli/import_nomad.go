package cli

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"connectrpc.com/connect"
	"github.com/spf13/pflag"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/pannier/pannier/internal/cabundle"
	escape "github.com/pannier/pannier/internal/printable"
	"github.com/pannier/pannier/sdk/api"
	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
)

func importNoun() noun {
	var f importFlags
	return nounOf("import", "Take over what another program knows", []verb{{
		use: "nomad", short: "Register the CSI volumes of a Nomad server here",
		long: `Register the CSI volumes of a Nomad server here, with what Nomad knows of them: driver, external
id, context, capabilities, capacity, parameters and topology. Nomad is only read. The command may
be repeated, and says of each volume what it did. -namespace limits it to one namespace; volumes
keep theirs.

Nomad shows neither the values of secrets nor mount flags. A volume that has some is not
registered; -write writes a spec of it, to be completed and registered with pannier volume
register. A volume that a workload of Nomad claims is not registered either, unless -force is given:
Pannier does not know of that claim, and two writers of a volume destroy its data.

Nomad is called at -nomad-address or NOMAD_ADDR, with the token in -nomad-token-file or NOMAD_TOKEN,
and with NOMAD_CACERT, NOMAD_CLIENT_CERT, NOMAD_CLIENT_KEY, NOMAD_TLS_SERVER_NAME and NOMAD_REGION.

The exit code is 1 if a volume could not be registered.`,
		example: "-nomad-address https://nomad.example.com:4646 -dry-run",
		flags: func(flags *pflag.FlagSet) {
			flags.StringVar(&f.address, "nomad-address", "",
				"the `URL` of Nomad's API, or unix:///PATH (default NOMAD_ADDR, or "+defaultNomad+")")
			flags.StringVar(&f.tokenFile, "nomad-token-file", "",
				"a `file` with the secret of a token of Nomad's (default: what NOMAD_TOKEN has)")
			flags.StringVar(&f.write, "write", "", "write specs of the volumes that need completion into the folder `DIR`")
			flags.BoolVar(&f.dryRun, "dry-run", false, "only say what would be done")
			flags.BoolVar(&f.force, "force", false, "register volumes that workloads of Nomad claim, too")
		},
		run: func(ctx context.Context, c *call) error { return runImport(ctx, c, f) },
	}})
}

// importFlags are the flags of import nomad.
type importFlags struct {
	address, tokenFile, write string
	dryRun, force             bool
}

// What became of a volume.
const (
	importRegistered = "registered"
	importWould      = "would be registered"
	importKnown      = "is registered already"
	importIncomplete = "needs completion"
	importInUse      = "is in use"
	importFailed     = "failed"
)

// imported is what became of one volume.
type imported struct {
	Namespace string   `json:"namespace"`
	ID        string   `json:"id"`
	Outcome   string   `json:"outcome"`
	Detail    string   `json:"detail,omitempty"`
	Warnings  []string `json:"warnings,omitempty"`
}

func runImport(ctx context.Context, c *call, f importFlags) error {
	server, err := dialNomad(f.address, f.tokenFile)
	if err != nil {
		return err
	}
	volumes, err := server.volumes(ctx, cmp.Or(c.namespace, os.Getenv("NOMAD_NAMESPACE"), "*"))
	if err != nil {
		return fmt.Errorf("read Nomad's volumes: %w", err)
	}
	all := []imported{}
	left := 0
	for _, v := range volumes {
		one := importVolume(ctx, c.Client, f, v)
		all = append(all, one)
		switch one.Outcome {
		case importRegistered, importKnown, importWould:
		default:
			left++
		}
	}
	err = c.Print(all, nil, func() { sayImported(c.Printer, all) })
	if err == nil && left > 0 {
		err = Coded(ExitError, fmt.Errorf("%d of Nomad's %d volumes are not registered", left, len(all)))
	}
	return err
}

func sayImported(p *Printer, all []imported) {
	if len(all) == 0 {
		p.Say("Nomad has no CSI volumes there")
		return
	}
	for _, one := range all {
		text := fmt.Sprintf("%s/%s: %s", one.Namespace, one.ID, one.Outcome)
		if one.Detail != "" {
			text += ": " + one.Detail
		}
		p.Say("%s", text)
		for _, w := range one.Warnings {
			p.Note("warning: %s", w)
		}
	}
}

// importVolume registers one volume, if nothing is against it.
func importVolume(ctx context.Context, client *api.Client, f importFlags, v nomadVolume) imported {
	is := func(outcome, format string, args ...any) imported {
		return imported{Namespace: v.Namespace, ID: v.ID, Outcome: outcome, Detail: fmt.Sprintf(format, args...)}
	}
	known, err := client.Volumes.GetVolume(ctx, &hostv1.GetVolumeRequest{Namespace: v.Namespace, Id: v.ID})
	switch has := known.GetVolume().GetSpec(); {
	case err == nil && (has.GetPluginId() != v.PluginID || has.GetExternalId() != v.ExternalID):
		return is(importFailed, "another volume is registered with this id: %s of driver %q", has.GetExternalId(),
			has.GetPluginId())
	case err == nil:
		return is(importKnown, "")
	case connect.CodeOf(err) != connect.CodeNotFound:
		return is(importFailed, "%v", err)
	}
	if hidden := strings.Join(v.hidden(), " and "); hidden != "" {
		path, err := v.write(f)
		switch {
		case err != nil:
			return is(importFailed, "%v", err)
		case path == "":
			return is(importIncomplete, "Nomad does not show its %s; -write DIR writes a spec to complete", hidden)
		}
		return is(importIncomplete, "Nomad does not show its %s; complete %s, then: pannier volume register %[2]s", hidden, path)
	}
	if n := v.claims(); n > 0 && !f.force {
		return is(importInUse, "claimed by %s of Nomad (%s): stop them first", escape.Count(n, "allocation"), listed(v.jobs()))
	}
	if f.dryRun {
		return is(importWould, "")
	}
	res, err := client.Volumes.RegisterVolume(ctx, &hostv1.RegisterVolumeRequest{Spec: v.spec()})
	if err != nil {
		return is(importFailed, "%v", err)
	}
	one := is(importRegistered, "")
	one.Warnings = res.GetWarnings()
	return one
}

// spec is the volume as Pannier has it. Of what Nomad hides there is nothing in it.
func (v nomadVolume) spec() *hostv1.VolumeSpec {
	spec := &hostv1.VolumeSpec{
		Id: v.ID, Name: v.Name, Type: "csi", Namespace: v.Namespace, PluginId: v.PluginID, ExternalId: v.ExternalID,
		CapacityMin: v.RequestedCapacityMin, CapacityMax: v.RequestedCapacityMax,
		Parameters: v.Parameters, Context: v.Context,
	}
	for _, c := range v.RequestedCapabilities {
		spec.Capabilities = append(spec.Capabilities,
			&hostv1.VolumeCapability{AccessMode: c.AccessMode, AttachmentMode: c.AttachmentMode})
	}
	if len(spec.GetCapabilities()) == 0 && v.AccessMode != "" { // registered by an old version
		spec.Capabilities = []*hostv1.VolumeCapability{{AccessMode: v.AccessMode, AttachmentMode: v.AttachmentMode}}
	}
	if v.MountOptions.FSType != "" {
		spec.MountOptions = &hostv1.MountOptions{FsType: v.MountOptions.FSType}
	}
	for _, t := range v.Topologies { // a registered volume is where its required topologies say
		if len(t.Segments) == 0 {
			continue
		}
		if spec.TopologyRequest == nil {
			spec.TopologyRequest = &hostv1.TopologyRequest{}
		}
		spec.TopologyRequest.Required = append(spec.TopologyRequest.Required, &hostv1.Topology{Segments: t.Segments})
	}
	return spec
}

// hidden names what the volume has that Nomad does not show.
func (v nomadVolume) hidden() (all []string) {
	if keys := slices.Sorted(maps.Keys(v.Secrets)); len(keys) > 0 {
		all = append(all, "secrets ("+strings.Join(keys, ", ")+")")
	}
	if len(v.MountOptions.MountFlags) > 0 {
		all = append(all, "mount flags")
	}
	return all
}

// claims counts the allocations that have the volume.
func (v nomadVolume) claims() int {
	return max(len(v.Allocations), len(v.ReadAllocs)+len(v.WriteAllocs))
}

// jobs names the jobs of these allocations.
func (v nomadVolume) jobs() (all []string) {
	for _, alloc := range v.Allocations {
		all = append(all, "job "+alloc.JobID)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// toFill is where a spec names the file of a secret that is to be filled in. There is none, so the spec is refused as
// it is.
const toFill = "file:///fill/in/the/path/of/"

// write writes a spec to complete. It returns "" if no folder was given, or nothing is to be done.
func (v nomadVolume) write(f importFlags) (path string, err error) {
	if f.write == "" || f.dryRun {
		return "", nil
	}
	if strings.ContainsRune(v.ID+v.Namespace, filepath.Separator) {
		return "", fmt.Errorf("volume %q of namespace %q: the name is none of a file", v.ID, v.Namespace)
	}
	spec := v.spec()
	if flags := v.MountOptions.MountFlags; len(flags) > 0 {
		spec.MountOptions = &hostv1.MountOptions{FsType: v.MountOptions.FSType, MountFlags: flags}
	}
	text, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(spec)
	var file map[string]any
	if err = errors.Join(err, json.Unmarshal(text, &file)); err != nil {
		return "", err
	}
	// In a spec these are blocks.
	file["capability"] = file["capabilities"]
	delete(file, "capabilities")
	if request, has := file["topology_request"].(map[string]any); has {
		request["required"] = map[string]any{"topology": request["required"]}
	}
	from := map[string]string{}
	for key := range v.Secrets {
		from[key] = toFill + key
	}
	file["secrets_from"] = from
	if text, err = json.MarshalIndent(file, "", "  "); err != nil {
		return "", err
	}
	path = filepath.Join(f.write, v.Namespace+"-"+v.ID+".json")
	err = errors.Join(os.MkdirAll(f.write, 0o700), os.WriteFile(path, append(text, '\n'), 0o600))
	if err != nil {
		return "", fmt.Errorf("write the spec of volume %q: %w", v.ID, err)
	}
	return path, nil
}

// defaultNomad is the default address of Nomad's API.
const defaultNomad = "http://127.0.0.1:4646"

const (
	// nomadTimeout bounds one request to Nomad.
	nomadTimeout = 30 * time.Second
	// maxNomadAnswer bounds an answer of Nomad's, in bytes.
	maxNomadAnswer = 64 << 20
	// nomadPage is how many volumes are listed at a time.
	nomadPage = 500
)

// nomadVolume is what the import reads of a volume (developer.hashicorp.com/nomad/api-docs/volumes).
type nomadVolume struct {
	ID         string
	Namespace  string
	Name       string
	ExternalID string
	PluginID   string

	AccessMode            string
	AttachmentMode        string
	RequestedCapabilities []struct{ AccessMode, AttachmentMode string }
	RequestedCapacityMin  int64
	RequestedCapacityMax  int64
	MountOptions          struct {
		FSType     string
		MountFlags []string
	}
	Secrets    map[string]string
	Parameters map[string]string
	Context    map[string]string
	Topologies []struct{ Segments map[string]string }

	ReadAllocs  map[string]json.RawMessage
	WriteAllocs map[string]json.RawMessage
	Allocations []struct{ ID, JobID string }
}

// nomadServer calls Nomad's HTTP API.
type nomadServer struct {
	client *http.Client
	base   string
	token  string
}

// dialNomad returns the Nomad that the flags or else the environment name. Nothing is called yet.
func dialNomad(address, tokenFile string) (*nomadServer, error) {
	s := &nomadServer{token: os.Getenv("NOMAD_TOKEN")}
	if tokenFile != "" {
		secret, err := os.ReadFile(tokenFile)
		if err != nil {
			return nil, fmt.Errorf("read Nomad's token: %w", err)
		}
		s.token = strings.TrimSpace(string(secret))
	}
	address = strings.TrimSuffix(cmp.Or(address, os.Getenv("NOMAD_ADDR"), defaultNomad), "/")
	transport := &http.Transport{}
	if path, local := strings.CutPrefix(address, "unix://"); local {
		transport.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", path)
		}
		address = "http://127.0.0.1"
	}
	if u, err := url.Parse(address); err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return nil, fmt.Errorf("the address of Nomad, %q, is neither http://HOST:PORT, https://HOST:PORT nor unix:///PATH",
			address)
	}
	s.base = address
	config := &tls.Config{ServerName: os.Getenv("NOMAD_TLS_SERVER_NAME"), MinVersion: tls.VersionTLS12}
	if path := os.Getenv("NOMAD_CACERT"); path != "" {
		ca, err := cabundle.Read(path)
		if err != nil {
			return nil, fmt.Errorf("NOMAD_CACERT: %w", err)
		}
		config.RootCAs = x509.NewCertPool()
		config.RootCAs.AppendCertsFromPEM(ca)
	}
	if cert, key := os.Getenv("NOMAD_CLIENT_CERT"), os.Getenv("NOMAD_CLIENT_KEY"); cert != "" || key != "" {
		pair, err := tls.LoadX509KeyPair(cert, key)
		if err != nil {
			return nil, fmt.Errorf("NOMAD_CLIENT_CERT and NOMAD_CLIENT_KEY: %w", err)
		}
		config.Certificates = []tls.Certificate{pair}
	}
	transport.TLSClientConfig = config
	s.client = &http.Client{Transport: transport, Timeout: nomadTimeout}
	return s, nil
}

// volumes reads all CSI volumes of a namespace, or of all ("*").
func (s *nomadServer) volumes(ctx context.Context, namespace string) ([]nomadVolume, error) {
	var all []nomadVolume
	query := url.Values{"type": {"csi"}, "namespace": {namespace}, "per_page": {fmt.Sprint(nomadPage)}}
	for {
		var stubs []nomadVolume
		next, err := s.get(ctx, "/v1/volumes", query, &stubs)
		if err != nil {
			return nil, err
		}
		for _, stub := range stubs {
			var v nomadVolume
			_, err := s.get(ctx, "/v1/volume/csi/"+url.PathEscape(stub.ID), url.Values{"namespace": {stub.Namespace}}, &v)
			if err != nil {
				return nil, err
			}
			all = append(all, v)
		}
		if next == "" {
			return all, nil
		}
		query.Set("next_token", next)
	}
}

// get reads one answer, and returns the token of its next page.
func (s *nomadServer) get(ctx context.Context, path string, query url.Values, into any) (next string, err error) {
	if region := os.Getenv("NOMAD_REGION"); region != "" {
		query.Set("region", region)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.base+path+"?"+query.Encode(), nil)
	if err != nil {
		return "", err
	}
	if s.token != "" {
		req.Header.Set("X-Nomad-Token", s.token)
	}
	res, err := s.client.Do(req)
	if err != nil {
		return "", err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(io.LimitReader(res.Body, maxNomadAnswer))
	switch {
	case err != nil:
		return "", fmt.Errorf("read the answer to GET %s: %w", path, err)
	case res.StatusCode == http.StatusForbidden:
		return "", fmt.Errorf("GET %s: Nomad refuses it: %s; the token in NOMAD_TOKEN or -nomad-token-file needs "+
			"csi-list-volume and csi-read-volume", path, strings.TrimSpace(string(body)))
	case res.StatusCode != http.StatusOK:
		return "", fmt.Errorf("GET %s: Nomad answers %s: %.200s", path, res.Status, strings.TrimSpace(string(body)))
	}
	if err := json.Unmarshal(body, into); err != nil {
		return "", fmt.Errorf("GET %s: the answer is not Nomad's: %w", path, err)
	}
	return res.Header.Get("X-Nomad-Nexttoken"), nil
}
