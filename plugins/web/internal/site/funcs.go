package site

import (
	"fmt"
	"html/template"
	"io/fs"
	"math"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/dustin/go-humanize"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
)

// titles of the pages by the name of their template.
var titles = map[string]string{
	"overview": "Overview", "volumes": "Volumes", "volume": "Volume", "nodes": "Nodes", "node": "Node",
	"workloads": "Workloads", "workload": "Workload", "plugins": "Plugins", "plugin": "Plugin", "drivers": "Drivers",
	"driver": "Driver", "services": "Services and tokens", "releases": "Releases that wait", "events": "Events",
	"checks": "Checks", "sign-in": "Sign in", "error": "Error", "confirm": "Confirm",
}

// parse reads the templates: each page is the layout with one file.
func parse() map[string]*template.Template {
	base := template.Must(template.New("").Funcs(funcs).ParseFS(files, "templates/layout.html", "templates/parts.html"))
	all, _ := fs.Glob(files, "templates/page-*.html") // the pattern is a constant
	pages := map[string]*template.Template{}
	for _, path := range all {
		name := strings.TrimSuffix(strings.TrimPrefix(path, "templates/page-"), ".html")
		pages[name] = template.Must(template.Must(base.Clone()).ParseFS(files, path))
	}
	return pages
}

var funcs = template.FuncMap{
	"nameParts": nameParts, "leased": func(n *hostv1.Node) leasedNode { return leasedNode{n} }, "hasPrefix": strings.HasPrefix, "contains": strings.Contains,
	"asset": asset, "bytes": size, "ago": ago, "until": until, "left": left, "took": took, "clock": clock, "short": short,
	"count": count, "percent": percent, "seg": url.PathEscape, "join": strings.Join, "mark": mark, "qualified": qualified,
	"number": commas,
	"list":   func(values ...any) []any { return values },
	"dict":   dict, "rate": rate, "more": func(n int) int { return n - shownClaims },
	"few":         func(claims []*hostv1.Claim) []*hostv1.Claim { return claims[:min(len(claims), shownClaims)] },
	"volumeURL":   func(namespace, id string) string { return objectURL("volumes", namespace, id) },
	"workloadURL": func(namespace, id, node string) string { return onNode(objectURL("workloads", namespace, id), node) },
	"pluginURL":   func(name, node string) string { return onNode(objectlessURL("plugins", name), node) }, "onNode": onNode,
	"split": func(id string) []string { namespace, name := unqualified(id); return []string{namespace, name} },
}

// shownClaims is how many claims of a volume a list shows.
const shownClaims = 3

// objectURL is the address of the page of what has a namespace.
func objectURL(kind, namespace, id string) string {
	if namespace == "" {
		namespace = defaultNamespace
	}
	return "/" + kind + "/" + url.PathEscape(namespace) + "/" + url.PathEscape(id)
}

// dict makes a map of names and values, for the parts of templates.
func dict(pairs ...any) map[string]any {
	m := map[string]any{}
	for n := 0; n+1 < len(pairs); n += 2 {
		m[fmt.Sprint(pairs[n])] = pairs[n+1]
	}
	return m
}

// size shows bytes with a binary unit.
func size(n any) string { return humanize.IBytes(uint64(number(n))) }

// number of a template's value; 0 for anything else.
func number(v any) float64 {
	f, err := strconv.ParseFloat(fmt.Sprint(v), 64)
	if err != nil {
		return 0
	}
	return f
}

// roughly shows a duration in its largest unit, so that a page changes rarely.
func roughly(d time.Duration) string {
	switch {
	case d < time.Second:
		return "0 s"
	case d < 2*time.Minute:
		return fmt.Sprintf("%d s", int(d.Seconds()))
	case d < 2*time.Hour:
		return fmt.Sprintf("%d min", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%d h", int(d.Hours()))
	default:
		return fmt.Sprintf("%d d", int(d.Hours()/24))
	}
}

// moment is a time with a machine's form of it.
func moment(t *timestamppb.Timestamp, show func(at time.Time) string) template.HTML {
	if t == nil {
		return "–"
	}
	at := t.AsTime().UTC()
	return template.HTML(`<time datetime="` + at.Format(time.RFC3339) + `" title="` + at.Format("2006-01-02 15:04:05 UTC") +
		`">` + show(at) + `</time>`) // digits and units
}

// ago returns how long ago a time was.
func ago(t *timestamppb.Timestamp) template.HTML {
	return moment(t, func(at time.Time) string { return roughly(time.Since(at)) + " ago" })
}

// until returns how long it is until a time.
func until(t *timestamppb.Timestamp) template.HTML {
	return moment(t, func(at time.Time) string { return "in " + roughly(time.Until(at)) })
}

// left returns how long it is until a time, below a heading that names the time.
func left(t *timestamppb.Timestamp) template.HTML {
	return moment(t, func(at time.Time) string { return roughly(time.Until(at)) })
}

// clock shows a time to the second, in UTC; web.js shows it in the browser's time zone.
func clock(t *timestamppb.Timestamp) template.HTML {
	return moment(t, func(at time.Time) string { return at.Format("01-02 15:04:05 UTC") })
}

// The ends of a long name tell it from others: its last characters are always shown.
const longName, nameEnd = 22, 9

// nameParts are the beginning of a name, which may be cut short, and its end; short names have no end.
func nameParts(name string) []string {
	if runes := []rune(name); len(runes) > longName {
		return []string{string(runes[:len(runes)-nameEnd]), string(runes[len(runes)-nameEnd:])}
	}
	return []string{name}
}

// took shows a duration.
func took(d *durationpb.Duration) string {
	switch t := d.AsDuration(); {
	case d == nil:
		return ""
	case t < time.Millisecond:
		return fmt.Sprintf("%d µs", t.Microseconds())
	case t < 10*time.Second:
		return strings.TrimSuffix(fmt.Sprintf("%.1f", float64(t.Microseconds())/1000), ".0") + " ms"
	default:
		return roughly(t)
	}
}

// short is the beginning of a checksum.
func short(sum string) string { return sum[:min(len(sum), 8)] }

// commas is a whole number with commas between thousands.
func commas(n any) string { return humanize.Comma(int64(number(n))) }

// count is a number with its noun.
func count(n any, noun string) string {
	if number(n) != 1 {
		noun += "s"
	}
	return commas(n) + " " + noun
}

// percent of part in whole, from 0 to 100.
func percent(part, whole any) int {
	if number(whole) <= 0 {
		return 0
	}
	return int(math.Round(min(max(100*number(part)/number(whole), 0), 100)))
}

// rate is how many calls of 100 failed.
func rate(failed, calls int64) string {
	if calls == 0 {
		return "–"
	}
	return strings.TrimSuffix(fmt.Sprintf("%.1f", 100*float64(failed)/float64(calls)), ".0") + " %"
}

// mark is the class of a state's badge: what is right, what needs a look, what is wrong, and what is neither.
func mark(state string) string {
	switch state {
	case "ready", "running", "taken", "healthy", "ok", "alive", "valid", "done", "started", "completed", "released", "in use",
		"leader":
		return "good"
	case "starting", "stopping", "waiting", "unpublishing", "node-detached", "warn",
		"disconnected", "releasing", "backing-off", "unknown", "draining", "canary", "orphan", "leaving":
		return "warn"
	case "failed", "down", "unhealthy", "fail", "abnormal", "swap-failed", "release-failed":
		return "bad"
	default:
		return "calm"
	}
}
