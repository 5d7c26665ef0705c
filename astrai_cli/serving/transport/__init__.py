"""Between sockets and endpoints: connections and their bounds, who may ask, how events are sent."""
