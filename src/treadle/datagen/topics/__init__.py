"""Topic trees and graphs: building, files of topics, and pictures."""
