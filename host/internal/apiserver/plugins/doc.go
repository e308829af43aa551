// Package plugins answers the API's calls about the plugin processes of this host, and the devices that plugins offer.
package plugins
