// Swagger UI over /openapi.json.

SwaggerUIBundle({ url: "/openapi.json", dom_id: "#api", deepLinking: true, docExpansion: "list", defaultModelsExpandDepth: 0 });
